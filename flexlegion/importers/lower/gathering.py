"""Elements by constant numbers, padding, dimensions that are turned round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from flexlegion.graph.tensor import MAX_RANK, Tensor
from flexlegion.importers.lower.base import Lowerer, Unsupported, lowers
from flexlegion.importers.program import SAMPLES, Node, Shape, Type, known
from flexlegion.importers.views import Axis, Run, Value, explicit, plain


def alone(lowerer: Lowerer, value: Value, d: int) -> tuple[Value, Tensor, int]:
    """With one axis for a dimension that is seen, which is a stored dimension by itself.

    Also the tensor that stores it so, and the place of that dimension.
    """
    value = lowerer.in_graph(lowerer.fused(value, d))
    if not value.seen[d]:
        raise Unsupported("it changes a dimension of extent 1")
    (axis,) = value.seen[d]
    runs: list[Run] = []
    for run in value.stored:
        if axis in run:
            at = run.index(axis)
            runs += [part for part in (run[:at], (axis,), run[at + 1 :]) if part]
        else:
            runs.append(run)
    while len(runs) > MAX_RANK:  # join two neighbours, neither of which is the axis
        pairs = range(1, len(runs) - 1)
        i = next(i for i in pairs if axis not in (*runs[i], *runs[i + 1]))
        runs[i : i + 2] = [(*runs[i], *runs[i + 1])]
    stored = tuple(runs)
    tensor = lowerer.arranged(value, stored)
    return Value(tensor, stored, value.seen), tensor, stored.index((axis,))


def changed(value: Value, tensor: Tensor, d: int, place: int, extents: Sequence[int]) -> Value:
    """The value after an operator that changed a dimension, which is seen as several then."""
    new = tuple(Axis(extent) for extent in extents if extent > 1)
    stored = (*value.stored[:place], new, *value.stored[place + 1 :])
    axes = iter(new)
    seen = [(next(axes),) if extent > 1 else () for extent in extents]
    return Value(tensor, stored, (*value.seen[:d], *seen, *value.seen[d + 1 :]))


def taken(
    lowerer: Lowerer, node: Node, value: Value, d: int, picked: npt.NDArray[np.int64]
) -> Value:
    """The elements of a dimension with these numbers, seen in the numbers' shape."""
    if not value.seen[d] and not picked.any():  # the only element, again and again
        runs = ((Axis(e, repeated=True),) if e > 1 else () for e in picked.shape)
        return value.with_seen((*value.seen[:d], *runs, *value.seen[d + 1 :]))
    value, tensor, place = alone(lowerer, value, d)
    name = lowerer.name(node, suffix="take")
    output = lowerer.model.take(tensor, picked.reshape(-1).tolist(), place, name=name)
    return changed(value, output, d, place, picked.shape)


def gathered(
    lowerer: Lowerer, node: Node, value: Value, shape: Shape, dims: list[int], arrays: list[Node]
) -> Value:
    """Elements by constant numbers in several dimensions that follow each other."""
    if dims != list(range(dims[0], dims[0] + len(dims))):
        raise Unsupported("it gathers elements by dimensions that do not follow each other")
    extents = [shape[d] for d in dims]
    if any(extent % SAMPLES == 0 for extent in extents):
        raise Unsupported("it picks samples")
    lists = [np.asarray(known(array), np.int64) for array in arrays]
    lists = [np.where(n < 0, n + e, n) for n, e in zip(lists, extents, strict=True)]
    picked = np.ravel_multi_index(np.broadcast_arrays(*lists), extents)
    first, last = dims[0], dims[-1]
    merged = tuple(axis for d in dims for axis in value.seen[d])
    seen = (*value.seen[:first], merged, *value.seen[last + 1 :])
    return taken(lowerer, node, value.with_seen(seen), first, picked)


@lowers("unfold")
def unfold(lowerer: Lowerer, node: Node) -> Value:
    """Windows along a dimension, the places within each behind all dimensions."""
    source, size = node["self"], node["size"]
    d = node["dimension"] % len(source.shape)
    if source.shape[d] % SAMPLES == 0:
        raise Unsupported("it cuts the samples")
    picked = np.arange(node.shape[d])[:, None] * node["step"] + np.arange(size)
    value = explicit(lowerer.value(source), source.shape)
    value = taken(lowerer, node, value, d, picked)
    places = value.seen[d + 1]
    return value.with_seen((*value.seen[: d + 1], *value.seen[d + 2 :], places))


@lowers("diagonal")
def diagonal(lowerer: Lowerer, node: Node) -> Value:
    """Elements whose places in two dimensions are the same, behind all dimensions."""
    source, rank = node["self"], len(node["self"].shape)
    a, b, offset = node["dim1"] % rank, node["dim2"] % rank, node["offset"]
    rows, columns = source.shape[a], source.shape[b]
    if rows % SAMPLES == 0 or columns % SAMPLES == 0:
        raise Unsupported("it picks samples")
    places = np.arange(node.shape[-1])
    picked = (places + max(-offset, 0)) * columns + places + max(offset, 0)
    value = explicit(lowerer.value(source), source.shape)
    others = [run for d, run in enumerate(value.seen) if d not in (a, b)]
    value = value.with_seen((*others, (*value.seen[a], *value.seen[b])))
    return taken(lowerer, node, value, rank - 2, picked)


@lowers("gather")
def gather(lowerer: Lowerer, node: Node) -> Value:
    """Elements along a dimension by constant numbers.

    Where these differ along other dimensions, all dimensions between are one, of which elements are
    taken by their numbers there.
    """
    source, index = node["self"], node["index"]
    rank = len(source.shape)
    d = node["dim"] % rank
    numbers = known(index)
    differ = [k for k in range(rank) if k != d and np.ptp(numbers, axis=k).any()]
    first, last = min([d, *differ]), max([d, *differ])
    inside = range(first, last + 1)
    alike = all(index.shape[k] == source.shape[k] for k in range(rank) if k not in inside)
    if not alike:
        raise Unsupported("it reads elements of a part of the rows")
    if any(source.shape[k] % SAMPLES == 0 for k in inside):
        raise Unsupported("it picks samples")
    extents, wanted = source.shape[first : last + 1], index.shape[first : last + 1]
    numbers = numbers[tuple(slice(None) if k in inside else 0 for k in range(rank))]
    places = [np.broadcast_to(numbers, wanted) if k == d else None for k in inside]
    own = np.indices(wanted, sparse=True)
    each = [its if place is None else place for its, place in zip(own, places, strict=True)]
    picked = np.ravel_multi_index(np.broadcast_arrays(*each), extents)
    value = explicit(lowerer.value(source), source.shape)
    merged = tuple(axis for k in inside for axis in value.seen[k])
    value = value.with_seen((*value.seen[:first], merged, *value.seen[last + 1 :]))
    return taken(lowerer, node, value, first, np.asarray(picked, np.int64))


@lowers("roll")
def roll(lowerer: Lowerer, node: Node) -> Value:
    source, shape = node["self"], node.shape
    if not node["dims"]:
        raise Unsupported("it rolls all dimensions as one")
    value = lowerer.value(source)
    for shift, dim in zip(node["shifts"], node["dims"], strict=True):
        d = dim % len(shape)
        if shape[d] % SAMPLES == 0:
            raise Unsupported("it rolls samples")
        if shape[d] == 1 or shift % shape[d] == 0:
            continue
        value, tensor, place = alone(lowerer, value, d)
        output = lowerer.model.roll(tensor, shift, place, name=lowerer.name(node))
        value = changed(value, output, d, place, (shape[d],))
    return value


@lowers("flip", "fliplr")
def flip(lowerer: Lowerer, node: Node) -> Value:
    source, shape = node["self"], node.shape
    value = explicit(lowerer.value(source), shape)
    for dim in node.get("dims", [1]):
        d = dim % len(shape)
        if shape[d] % SAMPLES == 0:
            raise Unsupported("it turns the order of samples round")
        if not all(axis.repeated for axis in value.seen[d]):  # else all elements are the same
            value = taken(lowerer, node, value, d, np.arange(shape[d])[::-1])
    return value


@lowers("pad", "constant_pad_nd")
def pad(lowerer: Lowerer, node: Node) -> Value:
    """Zeros, a number, or elements that are there; the last dimension's amounts come first."""
    source, amounts = node["self"], node["pad"]
    rank, mode = len(source.shape), node.get("mode", "constant")
    number = node.get("value") if mode == "constant" else None
    if number:  # what is added to zeros there
        return _padded_with(lowerer, node, float(number))
    value = lowerer.value(source)
    for i in range(len(amounts) // 2):
        d, before, after = rank - 1 - i, amounts[2 * i], amounts[2 * i + 1]
        extent = source.shape[d]
        if extent % SAMPLES == 0 and (before or after):
            raise Unsupported("it pads samples")
        if before == after == 0:
            continue
        if mode != "constant" or min(before, after) < 0:
            value = taken(lowerer, node, value, d, _padded(mode, extent, before, after))
            continue
        value, tensor, place = alone(lowerer, value, d)
        pairs = [(0, 0)] * (len(tensor.shape) - 1)
        pairs[place - 1] = (before, after)
        output = lowerer.model.pad(tensor, pairs, name=lowerer.name(node))
        value = changed(value, output, d, place, (extent + before + after,))
    return value


def _padded_with(lowerer: Lowerer, node: Node, number: float) -> Value:
    """With zeros, to which a constant adds the number."""
    from flexlegion.importers.lower.elementwise import apply

    if min(node["pad"]) < 0:
        raise Unsupported("it pads at one end and cuts at the other")
    value = pad(lowerer, replace(node, args=node.args | {"value": 0}))
    count = len(node["pad"]) // 2
    amounts = [(node["pad"][2 * i], node["pad"][2 * i + 1]) for i in reversed(range(count))]
    # A dimension that is not padded, as that of the samples, has the same everywhere.
    extents = [e if any(pair) else 1 for pair, e in zip(amounts, node.shape[-count:], strict=True)]
    array = np.full(extents, number, np.float32)
    array[tuple(slice(a, e - b) for (a, b), e in zip(amounts, extents, strict=True))] = 0
    frame = Node("constant", {}, Type(array.shape, "float32"), node.path, value=array)
    name = lowerer.name(node, suffix="frame")
    return apply(lowerer, "(x0 + x1)", [value, plain(frame, array.shape)], name)


def _padded(mode: str, extent: int, before: int, after: int) -> npt.NDArray[np.int64]:
    """The elements that stand in a dimension that is padded by its own elements, or cut."""
    places: npt.NDArray[np.int64] = np.arange(-before, extent + after)
    if mode == "constant":
        if max(before, after) > 0:
            raise Unsupported("it pads at one end and cuts at the other")
        return places
    if mode == "circular":
        return places % extent
    if mode == "replicate":
        return np.asarray(np.clip(places, 0, extent - 1), np.int64)
    if mode == "reflect":
        return np.asarray(extent - 1 - np.abs(extent - 1 - np.abs(places)), np.int64)
    raise Unsupported(f"it pads by '{mode}'")
