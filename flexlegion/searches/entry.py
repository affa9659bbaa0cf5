"""What is known of a strategy before a search goes on from it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import judge
from flexlegion.strategy.strategy import ResolvedStrategy

# If a task graph has so many times as many tasks as one with bundles, half of a search from there
# looks at bundles.
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
        What simulating it from nothing took.
    bundled_seconds
        What making its task graph with bundles took.
    scouted
        Which share of a search from it looks at bundles of transfers (`DETAILS`): the more, the
        larger the share of transfers in its task graph; 0: there is nothing to bundle.
    """

    name: str
    strategy: ResolvedStrategy
    time_ns: int | None
    seconds: float
    bundled_seconds: float
    scouted: float

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
            Whether a search may look at bundles.
        """
        begin = time.monotonic()
        judged = judge(problem, strategy)
        end = time.monotonic()
        more = 0.0  # tasks, as a share of those with bundles
        if bundles:
            # Its task graph is wanted, not its time: nobody's iteration takes 1 ns.
            bundled = judge(problem, strategy, 1, "bundles")
            more = judged.tasks / bundled.tasks - 1
        return cls(
            name,
            strategy,
            judged.time_ns,
            end - begin,
            time.monotonic() - end,
            more / (more + HALF_SCOUTED - 1),
        )
