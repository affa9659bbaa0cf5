"""What a search does about recomputation: it starts with it where memory would not suffice.

And it ends with as little of it as will do. Which operators are run again for the backward pass
decides on the order of launches, so chains do not change it. Each start says it, and what was found
is tried with less.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from math import prod

from flexlegion.graph.graph import Operator
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.recomputation import recomputing
from flexlegion.strategy.strategy import ResolvedStrategy


def where_needed(
    problem: Problem, starts: Mapping[str, ResolvedStrategy]
) -> dict[str, ResolvedStrategy]:
    """The starts; in place of one that does not fit into memory, itself with recomputation.

    What does not fit with it, either, is left out, if something does. The first start is looked at
    first: if it fits, the others stay as they are.

    Parameters
    ----------
    problem
        Graph, machine and costs.
    starts
        By name; one with recomputation is called ``data+again``.
    """
    found: dict[str, ResolvedStrategy] = {}
    for name, strategy in starts.items():
        if full(problem, strategy).fits:
            if not found:
                return dict(starts)
            found[name] = strategy
            continue
        again = strategy.changed(recomputing(strategy, problem.graph))
        if full(problem, again).fits:
            found[f"{name}+again"] = again
    return found or dict(starts)


def with_less(
    problem: Problem, strategy: ResolvedStrategy, seconds: float | None
) -> tuple[ResolvedStrategy, int]:
    """The same strategy with fewer operators run again, as far as memory and time allow; its time.

    Operators of one class, which blocks of a network have one each of, are kept or run again
    together: all of them, or, where they do not fit, those of half of the blocks, and so on. Those
    that take the most time for the memory that their outputs need come first.

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
    classes: dict[int, list[Operator]] = {}
    for op in problem.graph.operators:
        if strategy[op.name].again:
            classes.setdefault(problem.class_of(op), []).append(op)
    best = full(problem, strategy)
    for operators in sorted(classes.values(), key=lambda its: -_worth(its[0])):
        left = operators
        count = len(left)
        while count > 0 and (end is None or time.monotonic() < end):
            kept = {op.name: replace(strategy[op.name], again=False) for op in left[-count:]}
            changed = strategy.changed(kept)
            line = full(problem, changed)
            if line.fits and line.iteration_time_ns <= best.iteration_time_ns:
                strategy, best = changed, line
                left = left[:-count]
                count = min(count, len(left))
            else:
                count //= 2
    return strategy, best.iteration_time_ns


def _worth(op: Operator) -> float:
    """Floating-point operations of its forward pass for each number that it computes."""
    numbers = sum(prod(tensor.shape) for tensor in op.outputs)
    return op.kind.flops(op.input_shapes) / max(1, numbers)
