"""Elements by constant numbers, padding, dimensions that are turned round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flexlegion.graph.tensor import MAX_RANK, Tensor
from flexlegion.importers.lower.base import Lowerer, Unsupported, lowers
from flexlegion.importers.program import SAMPLES, Node, Shape, known
from flexlegion.importers.views import Axis, Run, Value, explicit


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
    """Zeros, or elements that are there already; the last dimension's amounts come first."""
    source, amounts = node["self"], node["pad"]
    rank, mode = len(source.shape), node.get("mode", "constant")
    if mode == "constant" and node.get("value") not in (None, 0, 0.0):
        raise Unsupported(f"it pads with {node['value']}; only zeros are possible")
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
