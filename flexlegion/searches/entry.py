"""What is known of a strategy before a search goes on from it."""

from __future__ import annotations

from dataclasses import dataclass

from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import judge, price
from flexlegion.strategy.strategy import ResolvedStrategy

# If a task graph has so many times as many tasks as a sketch of it, half of a search from there
# sketches.
HALF_SCOUTED = 3.0


@dataclass(frozen=True)
class Entry:
    """A strategy to go on from.

    Parameters
    ----------
    name
        Of the start that it is, or comes from.
    strategy
        Itself.
    time_ns
        Simulated; None: it does not fit into memory.
    seconds
        What simulating it from nothing took, or would take.
    sketch_seconds
        What sketching it from nothing took.
    scouted
        Which share of a search from it sketches (`DETAILS`): the more, the larger the share of
        transfers in its task graph; 0: there is nothing to bundle.
    tasks
        Of its task graph, if each transfer is looked at.
    """

    name: str
    strategy: ResolvedStrategy
    time_ns: int | None
    seconds: float
    sketch_seconds: float
    scouted: float
    tasks: int

    @property
    def best_time(self) -> int:
        """As of chains (`ChainState`): ns; -1: it does not fit into memory."""
        return -1 if self.time_ns is None else self.time_ns

    @classmethod
    def of(cls, problem: Problem, name: str, strategy: ResolvedStrategy, bundles: bool) -> Entry:
        """Simulate a strategy.

        Parameters
        ----------
        problem
            Graph, machine and costs.
        name, strategy
            What is simulated.
        bundles
            Whether a search may sketch.
        """
        # What does not fit is not simulated, be it as large as it may.
        sketched = judge(problem, strategy, 0, "bundles")
        more = sketched.all_tasks / max(1, sketched.tasks) - 1  # tasks of transfers
        time_ns, seconds = None, sketched.seconds * (1 + more)
        if sketched.fits:
            exact = price(problem, strategy, sketched.all_tasks)
            time_ns, seconds = exact.time_ns, exact.seconds
        scouted = more / (more + HALF_SCOUTED - 1) if bundles else 0.0
        return cls(name, strategy, time_ns, seconds, sketched.seconds, scouted, sketched.all_tasks)
