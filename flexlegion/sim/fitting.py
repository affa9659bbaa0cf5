"""What is added to a strategy that does not fit into memory: recomputation, or sharded weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flexlegion.sim.problem import MAX_TIME_NS, Problem
from flexlegion.sim.simulator import Judged, judge
from flexlegion.strategy.additions import with_additions
from flexlegion.strategy.strategy import ResolvedStrategy

# Tried one after the other. Of each row, the fastest that fits is taken; of what is in brackets,
# the first one that fits, as the next one takes longer.
TRIED = ((("selective", "again"), ("zero3",)), (("zero3+selective", "zero3+again"),))


class Fitting(NamedTuple):
    """A strategy with what it takes to fit.

    Attributes
    ----------
    added : str
        As behind a known strategy's name, ``zero3+again``; empty: nothing.
    strategy : ResolvedStrategy
        With that. If nothing makes it fit, with all that was tried.
    judged : Judged
        What is said of it.
    """

    added: str
    strategy: ResolvedStrategy
    judged: Judged


def fitting(
    problem: Problem, strategy: ResolvedStrategy, limit_ns: int = 0, simulable: bool = False
) -> Fitting:
    """A strategy, with recomputation or sharded weights as far as it does not fit without.

    Sketches tell what is faster (`DETAILS`), so this takes seconds on a thousand devices.

    Parameters
    ----------
    problem, strategy
        What is to fit where.
    limit_ns, simulable
        As of `judge`.
    """
    last = Fitting("", strategy, judge(problem, strategy, limit_ns, "bundles", simulable))
    # What is added only makes more tasks.
    if last.judged.fits or last.judged.too_large:
        return last

    def tried(kind: Sequence[str]) -> Iterator[Fitting]:
        """With each of these, but where that changes nothing."""
        for added in kind:
            changed = strategy.changed(with_additions(strategy, added.split("+"), problem.graph))
            if changed != strategy:
                judged = judge(problem, changed, limit_ns, "bundles", simulable)
                yield Fitting(added, changed, judged)

    for row in TRIED:
        found = []
        for kind in row:
            for last in tried(kind):
                if last.judged.fits:
                    found.append(last)
                    break
        if found:
            return min(found, key=lambda its: its.judged.time_ns or MAX_TIME_NS)
    return last
