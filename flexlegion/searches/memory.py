"""What a search does where memory would not suffice: recomputation, and sharded weights.

It starts with them, and ends with as little of them as will do. Which operators are run again for
the backward pass, and whose weights are sharded, decides on the order of launches, so chains do not
change it. Each start says it, and what was found is tried with less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from flexlegion.graph.graph import Operator
from flexlegion.sim.fitting import fitting
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import LARGE, Judged, judge
from flexlegion.strategy.configuration import SHARDING, ParallelConfig
from flexlegion.strategy.hierarchy import trained_bytes
from flexlegion.strategy.recomputation import flops_of_a_number
from flexlegion.strategy.strategy import ResolvedStrategy

Change = Callable[[ParallelConfig], ParallelConfig]


def where_needed(
    problem: Problem, starts: Mapping[str, ResolvedStrategy], first: Judged | None = None
) -> dict[str, ResolvedStrategy]:
    """The starts; in place of one that does not fit into memory, itself with something for that.

    With recomputation or with sharded weights, whichever is faster; or if neither fits, with both.
    What does not fit with both is left out, if something does. The first start is looked at first:
    if it fits, the others stay as they are. So do those of too many tasks to tell.

    Parameters
    ----------
    problem
        Graph, machine and costs.
    starts
        By name; one with recomputation is called ``data+again``.
    first
        What is known of the first start.
    """
    if first is not None and first.fits:
        return dict(starts)
    found: dict[str, ResolvedStrategy] = {}
    some_fit = False
    for name, strategy in starts.items():
        added, changed, judged = fitting(problem, strategy)
        if not found and not added and judged.fits:
            return dict(starts)
        some_fit = some_fit or judged.fits
        if judged.fits or judged.too_large:
            found[f"{name}+{added}" if added else name] = changed
    return found if some_fit else dict(starts)


def saves_memory(strategy: ResolvedStrategy) -> bool:
    """Whether there is something in it that `with_less` could take back."""
    return any(config.order != (False, SHARDING[0]) for config in strategy.values())


def with_less(
    problem: Problem, strategy: ResolvedStrategy, seconds: float | None
) -> tuple[ResolvedStrategy, int]:
    """The same strategy with less recomputation and sharding, as memory and time allow; its time.

    Operators of one class, which blocks of a network have one each of, are changed together: all of
    them, or, where they do not fit, those of half of the blocks, and so on. Where a simulation
    takes seconds, sketches tell what is faster, and only the result is simulated.

    Parameters
    ----------
    problem
        Graph, machine and costs.
    strategy
        What was found.
    seconds
        How long it may take; None: as long as it takes.
    """
    end = None if seconds is None else time.monotonic() + seconds
    found, found_ns = strategy, judge(problem, strategy).time_ns
    assert found_ns is not None, "what was found fits"
    large = judge(problem, strategy, 0, "bundles").all_tasks >= LARGE
    detail = "bundles" if large else "transfers"
    best_ns = judge(problem, strategy, 0, detail).time_ns or found_ns
    for operators, back in _steps(problem, strategy):
        left = operators
        count = len(left)
        while count > 0 and (end is None or time.monotonic() < end):
            less = {op.name: back(strategy[op.name]) for op in left[-count:]}
            changed = strategy.changed(less)
            time_ns = judge(problem, changed, best_ns, detail).time_ns
            if time_ns is not None:
                strategy, best_ns = changed, time_ns
                left = left[:-count]
                count = min(count, len(left))
            else:
                count //= 2
    if large:  # what sketches say is no price
        exact_ns = judge(problem, strategy, found_ns).time_ns
        return (found, found_ns) if exact_ns is None else (strategy, exact_ns)
    return strategy, best_ns


def _kept(config: ParallelConfig) -> ParallelConfig:
    return replace(config, again=False)


def _whole(config: ParallelConfig) -> ParallelConfig:
    return replace(config, sharding=SHARDING[0])


def _steps(problem: Problem, strategy: ResolvedStrategy) -> Iterator[tuple[list[Operator], Change]]:
    """Operators of a class, and how to have less of something there.

    First weights that are sharded, the smallest first: of these, the messages cost more than the
    memory is worth. Then recomputation, beginning with what takes the most time for the memory that
    its outputs need.
    """

    def classes(has: Callable[[ParallelConfig], bool]) -> list[list[Operator]]:
        found: dict[int, list[Operator]] = {}
        for op in problem.graph.operators:
            if has(strategy[op.name]):
                found.setdefault(problem.class_of(op), []).append(op)
        return list(found.values())

    sharded = classes(lambda config: config != _whole(config))
    for operators in sorted(sharded, key=lambda its: trained_bytes(its[0])):
        yield operators, _whole
    again = classes(lambda config: config.again)
    for operators in sorted(again, key=lambda its: -flops_of_a_number(its[0])):
        yield operators, _kept
