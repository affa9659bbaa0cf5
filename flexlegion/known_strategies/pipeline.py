"""A pipeline: runs of layers on one device each, through which micro-batches go in turn.

Stage s of p has p - s registers, so that as many micro-batches are under way there as it takes to
keep the stages behind it busy: "one forward, one backward" follows (`native/sim/rounds.h`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from flexlegion.base.errors import DoesNotApply
from flexlegion.graph.graph import Graph, Operator
from flexlegion.known_strategies.registry import own_strategy
from flexlegion.machine.devices import Devices
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.strategy import Strategy

# To move a number counts as so many floating-point operations. That is a guess, as no costs are
# known where a strategy is made by its name; machines that come along have ratios of 10 to 100.
FLOPS_OF_A_NUMBER = 40


@own_strategy("pipeline")
def pipeline(graph: Graph, devices: Devices) -> Strategy:
    """Operators in their order, cut into as many runs of equal work as there are devices.

    Raises
    ------
    UserError
        If an iteration has one micro-batch, or there is one device.
    """
    rounds, names = graph.micro_batches, devices.preferred
    if rounds == 1 or len(names) == 1:
        lacks = "there is one device" if rounds > 1 else "a batch goes through in one piece"
        raise DoesNotApply(
            "strategy 'pipeline' has micro-batches go from device to device, but "
            f"{lacks} (see --micro-batches)"
        )
    work = [work_of(op) for op in graph.operators]
    stages = cut(work, len(names))
    count = stages[-1] + 1 if stages else 0
    configs = {
        op.name: ParallelConfig(
            (1,) * len(op.dims), (names[stage],), buffers=min(rounds, count - stage)
        )
        for op, stage in zip(graph.operators, stages, strict=True)
    }
    return Strategy(configs, "strategy 'pipeline'")


def cut(work: Sequence[int], parts: int) -> list[int]:
    """The number of the part that each item is in: runs of items, the largest as small as can be.

    By bisection over the largest part: whether some bound suffices, a pass from the front tells.
    """
    low, high = max(work, default=0), sum(work)
    while low < high:
        bound = (low + high) // 2
        if _greedy(work, bound)[-1] < parts:
            high = bound
        else:
            low = bound + 1
    return _greedy(work, high)


def _greedy(work: Sequence[int], bound: int) -> list[int]:
    """Each part as large as the bound allows."""
    numbers, part, sum_ = [], 0, 0
    for its in work:
        if sum_ + its > bound and sum_ > 0:
            part, sum_ = part + 1, 0
        sum_ += its
        numbers.append(part)
    return numbers


def work_of(op: Operator) -> int:
    """Of a forward and a backward task, in floating-point operations."""
    shapes = op.input_shapes
    numbers = sum(prod(tensor.shape) for tensor in (*op.inputs, *op.outputs))
    flops = op.kind.flops(shapes) + op.kind.backward_flops(shapes)
    return flops + 3 * FLOPS_OF_A_NUMBER * numbers
