"""Small problems are solved: branch and bound finds the optimum, or proves that it was found."""

from __future__ import annotations

import time
from collections.abc import Callable

from flexlegion.searches.chain import Chain
from flexlegion.searches.memory import saves_memory
from flexlegion.searches.options import SearchOptions
from flexlegion.sim.problem import Problem
from flexlegion.strategy.strategy import ResolvedStrategy

# The largest problems that are tried: so many operators that training executes, on so many devices.
MOST_OPERATORS, MOST_DEVICES = 16, 4
# Native code runs for so many seconds before it can be interrupted.
SLICE_SECONDS = 0.1


def can_be_proved(problem: Problem, strategy: ResolvedStrategy, options: SearchOptions) -> bool:
    """Whether the problem is small, and a search from such a strategy can be bounded.

    The bounds know neither micro-batches nor what saves memory, nor sums inside nodes, and all sets
    of devices.
    """
    return (
        options.proof
        and len(problem.devices) <= MOST_DEVICES
        and len({device.node for device in problem.topology.devices}) == 1
        and len(problem.facts.trained) <= MOST_OPERATORS
        and problem.graph.micro_batches == 1
        and problem.space is None
        and not saves_memory(strategy)
    )


class Proof:
    """An exhaustive search (`flexlegion.searches.exhaustive`), as far as its time allows.

    Parameters
    ----------
    problem
        Graph, machine and costs, with candidates.
    name, strategy
        The best start: what cannot be faster is left out unseen.

    Attributes
    ----------
    name
        Of the start from which the best came.
    complete
        Whether the best is the optimum.
    """

    def __init__(self, problem: Problem, name: str, strategy: ResolvedStrategy) -> None:
        self.name = name
        self.chain = Chain(problem, strategy, seed=0)
        self.complete = False

    @property
    def strategy(self) -> ResolvedStrategy:
        """The best so far."""
        return self.chain.best

    @property
    def best_time(self) -> int:
        """ns; -1: nothing has fitted into memory."""
        return self.chain.state.best_time

    def offer(self, name: str, strategy: ResolvedStrategy, time_ns: int) -> None:
        """A strategy that somebody else has found, and its time."""
        if not 0 <= self.best_time <= time_ns:
            self.name = name
            self.chain.adopt(strategy)

    def run(self, deadline: float, report: Callable[[], None]) -> None:
        """Go on until the deadline, by `time.monotonic`, or the end."""
        while not self.complete and (left := deadline - time.monotonic()) > 0:
            self.complete = self.chain.exhaust(min(left, SLICE_SECONDS)).complete
            report()
