"""Pipelines: runs of layers on one device each, through which micro-batches go in turn.

Stage s of p has p - s registers, so that as many micro-batches are under way there as it takes to
keep the stages behind it busy: "one forward, one backward" follows (`native/sim/rounds.h`). Where
micro-batches go round the devices, more are under way (`registers`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod

from flexlegion.base.errors import DoesNotApply
from flexlegion.graph.graph import Graph, Operator
from flexlegion.known_strategies.registry import own_strategy
from flexlegion.machine.devices import Devices
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.recomputation import crossing
from flexlegion.strategy.strategy import Strategy

# To move a number counts as so many floating-point operations. That is a guess, as no costs are
# known where a strategy is made by its name; machines that come along have ratios of 10 to 100.
FLOPS_OF_A_NUMBER = 40
# Where a network is cut, little is to cross. A cut has less to cross than any other one within such
# a share of a run's work; several are tried. The largest stage may have so much more work for it
# than if cuts were anywhere.
NEAR, UNEVEN = (1 / 8, 1 / 16, 1 / 32, 1 / 64), 0.05


@own_strategy("pipeline")
def pipeline(graph: Graph, devices: Devices) -> Strategy:
    """Operators in their order, cut into as many runs of equal work as there are devices.

    Raises
    ------
    UserError
        If an iteration has one micro-batch, or there is one device.
    """
    return _pipeline(graph, devices, "pipeline", runs=1)


@own_strategy("interleaved")
def interleaved(graph: Graph, devices: Devices) -> Strategy:
    """A pipeline that goes round the devices twice: each has two runs of layers.

    So devices are idle about half as long, and twice as much moves between them (Narayanan et al.
    2021, section 2.2).

    Raises
    ------
    UserError
        If an iteration has one micro-batch, there is one device, or there are too few layers.
    """
    return _pipeline(graph, devices, "interleaved", runs=2)


def _pipeline(graph: Graph, devices: Devices, name: str, runs: int) -> Strategy:
    """With so many runs of layers a device."""
    rounds, names = graph.micro_batches, devices.preferred
    if rounds == 1 or len(names) == 1:
        lacks = "there is one device" if rounds > 1 else "a batch goes through in one piece"
        raise DoesNotApply(
            f"strategy '{name}' has micro-batches go from device to device, but "
            f"{lacks} (see --micro-batches)"
        )
    numbers = runs_of_layers(graph, len(names), runs)
    stages = min(max(numbers, default=0) + 1, len(names))
    configs = {
        op.name: ParallelConfig(
            (1,) * len(op.dims),
            (names[number % stages],),
            buffers=registers(stages, runs, number, rounds),
        )
        for op, number in zip(graph.operators, numbers, strict=True)
    }
    return Strategy(configs, f"strategy '{name}'")


def runs_of_layers(
    graph: Graph, stages: int, runs: int, work: Sequence[int] | None = None
) -> list[int]:
    """Of each operator, in which run of operators it is; run r is on stage r modulo `stages`.

    Runs are of equal work, as far as that goes, and end where little has to be moved: between two
    blocks of a transformer, say. There may be fewer runs than stages; but if stages have several
    each, all have as many.

    Parameters
    ----------
    graph
        The network.
    stages, runs
        Of the pipeline; of operators, on each stage.
    work
        Of each operator, in any unit; None: in operations, as there are no costs.

    Raises
    ------
    UserError
        If there are too few operators for that.
    """
    work = work or [work_of(op) for op in graph.operators]
    behind = crossing_numbers(graph)
    best = cut_into_runs(work, stages, runs)
    most = (1 + UNEVEN) * _largest(work, best, stages)
    for share in NEAR:
        units = units_of(work, behind, share * sum(work) / (stages * runs))
        if len(units) < stages * runs:
            continue
        of_unit = cut_into_runs([sum(work[at] for at in unit) for unit in units], stages, runs)
        numbers = [of_unit[number] for number, unit in enumerate(units) for _ in unit]
        if _largest(work, numbers, stages) <= most:
            best = min(best, numbers, key=lambda its: _crossing_all(its, behind))
    return best


def _largest(work: Sequence[int], numbers: Sequence[int], stages: int) -> int:
    """The work of the stage that has the most."""
    return max(_works(work, numbers, stages))


def _works(work: Sequence[int], numbers: Sequence[int], stages: int) -> list[int]:
    """The work of each stage."""
    works = [0] * stages
    for its, number in zip(work, numbers, strict=True):
        works[number % stages] += its
    return works


def _crossing_all(numbers: Sequence[int], behind: Sequence[int]) -> int:
    """The numbers that cross all cuts."""
    ends = zip(pairwise(numbers), behind, strict=False)
    return sum(its for (run, next_), its in ends if run != next_)


def crossing_numbers(graph: Graph) -> list[int]:
    """Behind each operator, how many numbers those computed whose outputs are read later."""
    return [
        sum(prod(tensor.shape) for op in open_ for tensor in op.outputs)
        for open_ in crossing(graph)
    ]


def units_of(work: Sequence[int], behind: Sequence[int], near: float) -> list[range]:
    """Runs of operators that stay together: a cut lies where nothing near it crosses less.

    Parameters
    ----------
    work
        Of each operator.
    behind
        Numbers that cross a cut behind it.
    near
        What has less work than that between it and the cut, on either side.
    """
    done = list(accumulate(work))
    units, first = [], 0
    for at in range(len(work)):
        low = bisect_left(done, done[at] - near)
        high = bisect_right(done, done[at] + near, hi=len(work) - 1)
        if behind[at] <= min(behind[low:high], default=0) or at + 1 == len(work):
            units.append(range(first, at + 1))
            first = at + 1
    return units


def cut_into_runs(work: Sequence[int], stages: int, runs: int) -> list[int]:
    """The same, of operators of that work."""
    wanted = stages * runs
    numbers = cut(work, wanted)
    if runs == 1:
        return numbers
    if len(work) < wanted:
        raise DoesNotApply(
            f"{runs} runs of operators on each of {stages} stages are {wanted}, but the model has "
            f"no more than {len(work)}"
        )
    while numbers[-1] + 1 < wanted:  # the largest run that has several becomes two
        spans: list[list[int]] = [[] for _ in range(numbers[-1] + 1)]
        for i, number in enumerate(numbers):
            spans[number].append(i)
        largest = max(
            (span for span in spans if len(span) > 1), key=lambda its: sum(work[i] for i in its)
        )
        halves = cut([work[i] for i in largest], 2)
        second = halves.index(1) if 1 in halves else len(largest) - 1
        for i in range(largest[second], len(numbers)):
            numbers[i] += 1
    _balance(work, numbers, stages)
    return numbers


def _balance(work: Sequence[int], numbers: list[int], stages: int) -> None:
    """Move borders of runs, an operator at a time, while the stages' works get more equal.

    Runs of equal work are not enough: the last one may be an operator that cannot be divided, and
    its stage has others. What gets smaller is the sum of the works' squares.
    """
    works = _works(work, numbers, stages)
    moved = True
    while moved:
        moved = False
        for i in range(1, len(work)):
            left, right = numbers[i - 1], numbers[i]
            if left == right:
                continue
            # The operator before the border goes right, or the one behind it left, if its run keeps
            # another.
            for at, to in ((i - 1, right), (i, left)):
                run = numbers[at]
                beside = at - 1 if at == i - 1 else at + 1
                alone = not 0 <= beside < len(work) or numbers[beside] != run
                more, less = works[to % stages], works[run % stages]
                if not alone and run % stages != to % stages and more + work[at] < less:
                    works[to % stages] += work[at]
                    works[run % stages] -= work[at]
                    numbers[at] = to
                    moved = True
                    break


def registers(stages: int, runs: int, number: int, rounds: int) -> int:
    """That a run's tensors need, for no device to wait for one where transfers take no time.

    Of one run of operators a stage, stage s of p needs p - s. Of v, from the forward task of run r
    to its backward task there are D = 2 (v p - 1 - r) + 1 tasks of the device, forward or backward,
    and of each v p of them, the first p at most are of run r: micro-batches go in groups of p
    (`native/plan/service_order.h`).

    Parameters
    ----------
    stages, runs
        Of the pipeline; of operators, on each stage.
    number
        Of the run, of all stages', from 0.
    rounds
        Micro-batches; there are no more registers than these.
    """
    if runs == 1:
        return min(rounds, stages - number)
    whole, rest = divmod(2 * (stages * runs - 1 - number) + 1, stages * runs)
    return min(rounds, whole * stages + min(rest, stages))


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
