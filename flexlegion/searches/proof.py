"""Small problems are solved: branch and bound finds the optimum, or proves that it was found."""

from __future__ import annotations

import time
from collections.abc import Callable

from flexlegion.searches.chain import Chain, ChainState
from flexlegion.searches.entry import Entry
from flexlegion.searches.memory import saves_memory
from flexlegion.searches.options import SearchOptions
from flexlegion.sim.problem import Problem

# The largest problems that are tried: so many operators that training executes, on so many devices.
MOST_OPERATORS, MOST_DEVICES = 16, 4
# Native code runs for so many seconds before it can be interrupted.
SLICE_SECONDS = 0.1


def can_be_proved(problem: Problem, entry: Entry, options: SearchOptions) -> bool:
    """Whether the problem is small, and a search from such a strategy can be bounded.

    The bounds know neither micro-batches nor what saves memory, and all sets of devices.
    """
    return (
        options.proof
        and len(problem.devices) <= MOST_DEVICES
        and len(problem.facts.trained) <= MOST_OPERATORS
        and problem.graph.micro_batches == 1
        and problem.space is None
        and not saves_memory(entry.strategy)
    )


class Proof:
    """An exhaustive search (`flexlegion.searches.exhaustive`), as far as its time allows.

    Parameters
    ----------
    problem
        Graph, machine and costs, with candidates.
    entry
        The best that is known: what cannot be faster is left out unseen.
    """

    def __init__(self, problem: Problem, entry: Entry) -> None:
        self.entry = entry
        self.chain = Chain(problem, entry.strategy, seed=0)
        self.complete = False
        self.root_bound_ns = 0

    @property
    def state(self) -> ChainState:
        """Of its chain."""
        return self.chain.state

    def offer(self, entry: Entry) -> None:
        """A strategy that somebody else has found."""
        if entry.time_ns is not None and not 0 <= self.state.best_time <= entry.time_ns:
            self.entry = entry
            self.chain.adopt(entry.strategy)

    def run(self, deadline: float, report: Callable[[float], None]) -> bool:
        """Go on until the deadline, by `time.monotonic`; whether the best is the optimum."""
        begin = time.monotonic()
        while not self.complete and (left := deadline - time.monotonic()) > 0:
            branches = self.chain.exhaust(min(left, SLICE_SECONDS))
            self.complete, self.root_bound_ns = branches.complete, branches.root_bound
            report((time.monotonic() - begin) / (deadline - begin))
        return self.complete
