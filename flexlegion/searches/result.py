"""What a search found."""

from __future__ import annotations

from dataclasses import dataclass

from flexlegion.searches.chain import ChainState
from flexlegion.strategy.strategy import ResolvedStrategy


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Parameters
    ----------
    strategy
        The fastest that fits into memory.
    iteration_time_ns
        Its simulated time.
    start
        From which start it came.
    found
        What came of each start that led to something that fits, with its time; the fastest first.
    start_times_ns
        Simulated time of each start; None: it does not fit into memory.
    states
        For each start, the state of each chain at its end. Chains that were left have no times.
    chains
        How many there were side by side.
    seconds
        What the search took.
    local_optimum
        Whether no change of one operator improves the strategy.
    optimum
        Whether no strategy is faster at all: of those that `exhaustive` would look at.
    interrupted
        Whether the user ended it early.
    trace
        How it went: proposals made, and the best time until then, at the first strategy that fits,
        at each improvement seen, and at the end.
    ended_by
        What ended it early: `flexlegion.process.ending.Terminated` for SIGTERM, for example.
    """

    strategy: ResolvedStrategy
    iteration_time_ns: int
    start: str
    found: dict[str, tuple[ResolvedStrategy, int]]
    start_times_ns: dict[str, int | None]
    states: dict[str, list[ChainState]]
    seconds: float
    local_optimum: bool
    interrupted: bool
    trace: tuple[tuple[int, int], ...] = ()
    ended_by: KeyboardInterrupt | None = None
    chains: int = 0
    optimum: bool = False

    @property
    def proposals(self) -> int:
        """All proposals of all chains."""
        return sum(state.proposals for states in self.states.values() for state in states)
