"""What any strategy takes at least: how far a search is from what cannot be beaten."""

from __future__ import annotations

from dataclasses import dataclass

from flexlegion.searches.chain import SplitsOf, prepare_candidates
from flexlegion.sim.problem import Problem


@dataclass(frozen=True)
class LeastTime:
    """A lower bound of the iteration time, over all strategies that a search may propose.

    It knows the operators' tasks, which wait for each other and keep devices busy. It does not know
    transfers, waiting for devices, sums of partial values and memory, so the optimum is slower, in
    general (``native/bounds/least_time.h``).

    Parameters
    ----------
    time_ns
        The bound.
    chain_ns, work_ns
        What follows from the longest chain of tasks alone, each operator at its fastest, and from
        the work alone, spread over all devices.
    work_weight
        0 to 1: the weight of the work in the mean of both that decides; the chain has the rest.
    """

    time_ns: int
    chain_ns: int
    work_ns: int
    work_weight: float


def least_time(problem: Problem, splits_of: SplitsOf | None = None) -> LeastTime:
    """What any strategy takes at least.

    Parameters
    ----------
    problem
        Graph, machine and costs. All splits in its cost table are candidates; those of the chains
        are added.
    splits_of
        How operators may be split; see `prepare_candidates`.
    """
    prepare_candidates(problem, splits_of, parts=True)
    core = problem.core
    its = core.ffi.new("fl_least_time *")
    core.check(core.lib.fl_problem_least_time(problem.handle, its))
    return LeastTime(int(its.time), int(its.chain), int(its.work), float(its.weight))
