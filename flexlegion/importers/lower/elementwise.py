"""Element-wise expressions: their operands are brought into one arrangement, and broadcast."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flexlegion.graph.tensor import MAX_RANK, Tensor
from flexlegion.importers.lower.base import Lowerer, Unsupported, lowers
from flexlegion.importers.program import SAMPLES, Node
from flexlegion.importers.views import Axis, Run, Value, explicit, refined
from flexlegion.ops.elementwise import Gelu, Relu, Sigmoid, Tanh
from flexlegion.ops.merge import Add, Multiply

_OWN = {"relu": Relu, "sigmoid": Sigmoid, "tanh": Tanh, "gelu": Gelu}


@lowers("expression")
def expression(lowerer: Lowerer, node: Node) -> Value:
    """A formula over x0, x1, ... in one operator."""
    operands = [lowerer.value(operand) for operand in node["operands"]]
    return apply(lowerer, node["formula"], operands, lowerer.name(node, suffix=node["kind"]))


@lowers("prelu", "_prelu_kernel")
def prelu(lowerer: Lowerer, node: Node) -> Value:
    """A slope for each channel, which are the second dimension, or one for all."""
    x, slopes = node.inputs
    value = lowerer.value(slopes)
    if len(slopes.shape) == 1 and len(x.shape) > 2:
        value = value.with_seen((value.seen[0], *((),) * (len(x.shape) - 2)))
    formula = "where((x0 > 0.0), x0, (x1 * x0))"
    return apply(lowerer, formula, [lowerer.value(x), value], lowerer.name(node))


def apply(lowerer: Lowerer, formula: str, operands: list[Value], name: str) -> Value:
    """A formula of operands, which are broadcast as PyTorch does it."""
    aligned = align(lowerer, operands)
    tensor = _operator(lowerer, formula, aligned.tensors, name)
    return Value(tensor, aligned.stored, aligned.seen)


def _operator(lowerer: Lowerer, formula: str, tensors: list[Tensor], name: str) -> Tensor:
    graph = lowerer.model.graph
    unary = re.fullmatch(r"(\w+)\(x0\)", formula)
    if unary and unary[1] in _OWN:
        return graph.add(_OWN[unary[1]](), tensors, name)
    alike = len({tensor.shape for tensor in tensors}) == 1
    alike = alike and all(tensor.dtype == "float32" for tensor in tensors)
    if alike and formula in ("(x0 + x1)", "(x0 * x1)") and len(tensors) == 2:
        return graph.add(Add() if "+" in formula else Multiply(), tensors, name)
    return lowerer.model.elementwise(formula, tensors, name=name)


@dataclass
class Aligned:
    """Operands in one arrangement, and how the result is stored and seen."""

    tensors: list[Tensor]
    stored: tuple[Run, ...]
    seen: tuple[Run, ...]


def align(lowerer: Lowerer, operands: list[Value]) -> Aligned:
    """Bring operands into one arrangement: that of the largest, as far as it goes."""
    rank = max(len(value.seen) for value in operands)
    padded = [value.with_seen(((),) * (rank - len(value.seen)) + value.seen) for value in operands]
    cut = refined(padded)
    if cut is None:
        cut = refined([_joined(lowerer, value) for value in padded])
        assert cut is not None
    values = cut
    result, slots = _slots(values)
    order = _order(values, result, slots)
    runs = _runs(values, order, slots)
    tensors = []
    for value, places in zip(values, slots, strict=True):
        own = {axis: _stored(places.get(axis)) for run in runs for axis in run}
        mine = [tuple(a for axis in run if (a := own[axis]) is not None) for run in runs]
        tensors.append(lowerer.arranged(value, mine, whole=True))
    seen = tuple(tuple(result[d, i] for i in range(m)) for d, m in _sizes(values))
    return Aligned(tensors, tuple(runs), seen)


def align_parts(
    lowerer: Lowerer, parts: list[Value], shapes: list[tuple[int, ...]], d: int
) -> tuple[Aligned, int]:
    """Bring parts that follow each other along dimension `d` into one arrangement.

    Also the place of that dimension among those that are stored.
    """
    values = []
    for part, shape in zip(parts, shapes, strict=True):
        known = tuple(1 if e == SAMPLES else e for e in shape)  # samples are expanded at last
        values.append(lowerer.fused(explicit(part, known), d))
    joined = [value.seen[d] for value in values]
    cut = refined(
        [value.with_seen((*v[:d], (), *v[d + 1 :])) for value in values if (v := value.seen)]
    )
    if cut is None:
        raise Unsupported("its inputs are merged from dimensions that do not fit together")
    result, slots = _slots(cut)
    axis = Axis(sum(shape[d] for shape in shapes))
    result[d, 0] = axis
    result = dict(sorted(result.items()))
    for slot, run in zip(slots, joined, strict=True):
        if run:
            slot[axis] = run[0]
    for (dimension, i), a in list(result.items()):
        if a.repeated and a.extent != SAMPLES:  # all parts repeat it: so does the result
            result[dimension, i] = fresh = Axis(a.extent)
            for slot in slots:
                if a in slot:
                    slot[fresh] = slot.pop(a)
    order = _order(cut, result, slots)
    runs = _runs(cut, order, slots, alone=axis)
    tensors = [
        lowerer.arranged(value, [tuple(slot[a] for a in run if a in slot) for run in runs])
        for value, slot in zip(cut, slots, strict=True)
    ]
    sizes = {k: 1 + max(i for e, i in result if e == k) for k, _ in result}
    seen = tuple(tuple(result[k, i] for i in range(sizes.get(k, 0))) for k in range(len(shapes[0])))
    place = next(i for i, run in enumerate(runs) if axis in run)
    return Aligned(tensors, tuple(runs), seen), place


def _joined(lowerer: Lowerer, value: Value) -> Value:
    """With one axis for each dimension that is seen, so that all are cut alike."""
    for d in range(len(value.seen)):
        value = lowerer.fused(value, d)
    return value


def _stored(axis: Axis | None) -> Axis | None:
    return None if axis is None or axis.repeated else axis


def _sizes(values: list[Value]) -> list[tuple[int, int]]:
    """How many axes each dimension is cut into."""
    return [(d, max(len(value.seen[d]) for value in values)) for d in range(len(values[0].seen))]


def _slots(values: list[Value]) -> tuple[dict[tuple[int, int], Axis], list[dict[Axis, Axis]]]:
    """The result's axes, by dimension and place in it; and each operand's axis for them."""
    result: dict[tuple[int, int], Axis] = {}
    slots: list[dict[Axis, Axis]] = [{} for _ in values]
    for d, size in _sizes(values):
        for i in range(size):
            own = [value.seen[d][i] if value.seen[d] else None for value in values]
            extents = {axis.extent for axis in own if axis is not None}
            if len(extents) != 1:
                raise Unsupported("its operands have dimensions that do not fit together")
            axis = Axis(extents.pop(), all(a is None or a.repeated for a in own))
            result[d, i] = axis
            for slot, a in zip(slots, own, strict=True):
                if a is not None:
                    slot[axis] = a
    return result, slots


def _leader(values: list[Value], slots: list[dict[Axis, Axis]]) -> int:
    """The largest operand, which stays as it is stored."""

    def size(i: int) -> tuple[int, bool]:
        product = 1
        for axis in slots[i].values():
            product *= 1 if axis.repeated else axis.extent
        return product, isinstance(values[i].source, Tensor)

    return max(range(len(values)), key=size)


def _order(
    values: list[Value], result: dict[tuple[int, int], Axis], slots: list[dict[Axis, Axis]]
) -> list[Axis]:
    """The result's axes in the order in which they are stored."""
    leader = _leader(values, slots)
    of_own = {own: axis for axis, own in slots[leader].items()}
    order = [of_own[own] for own in values[leader].axes]
    previous: Axis | None = None
    for axis in result.values():
        if axis.repeated:
            continue
        if axis not in order:
            place = order.index(previous) + 1 if previous is not None else 0
            order.insert(place, axis)
        previous = axis
    samples = [axis for axis in order if axis.extent == SAMPLES]
    return samples + [axis for axis in order if axis.extent != SAMPLES]


def _runs(
    values: list[Value],
    order: list[Axis],
    slots: list[dict[Axis, Axis]],
    alone: Axis | None = None,
) -> list[Run]:
    """Cut the order where an operand begins or ends to have axes, and where the leader is cut."""
    if alone is None:
        presence = {a: tuple(_stored(slot.get(a)) is not None for slot in slots) for a in order}
    else:  # parts: nothing is broadcast, and the dimension along which they follow is major
        presence = {a: (a is alone,) for a in order}
    leader = _leader(values, slots)
    cuts = {run[0] for run in values[leader].stored if run}
    starts = {axis for axis, own in slots[leader].items() if own in cuts}
    for keep_cuts in (True, False):
        runs: list[list[Axis]] = [[]]
        for axis in order:
            if axis.extent == SAMPLES:
                runs[0].append(axis)
                continue
            last = runs[-1][-1] if len(runs) > 1 else None
            joins = last is not None and (presence[last] == presence[axis] or last is alone)
            if joins and not (keep_cuts and axis in starts):
                runs[-1].append(axis)
            else:
                runs.append([axis])
        if len(runs) <= MAX_RANK:
            return [tuple(run) for run in runs]
    raise Unsupported(
        f"its operands broadcast along {len(runs)} dimensions, {MAX_RANK} are possible"
    )
