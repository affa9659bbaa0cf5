"""What moves no elements, or whole blocks of them: views, slices, concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flexlegion.graph.tensor import MAX_RANK
from flexlegion.importers.lower.base import Lowerer, Result, Unsupported, lowers
from flexlegion.importers.lower.gathering import alone, changed, gathered
from flexlegion.importers.lower.products import WEIGHTS
from flexlegion.importers.program import SAMPLES, Node, Type, known
from flexlegion.importers.views import Axis, Value, explicit, extent_of, permuted, plain
from flexlegion.ops.merge import Concat
from flexlegion.ops.shape import Slice


@lowers(
    "view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as", "_unsafe_view"
)
def reshape(lowerer: Lowerer, node: Node) -> Value:
    source = node["self"]
    value = explicit(lowerer.value(source), source.shape)
    return lowerer.reshaped(value, node.shape)


@lowers("permute")
def permute(lowerer: Lowerer, node: Node) -> Value:
    rank = len(node.shape)
    return permuted(lowerer.value(node["self"]), [d % rank for d in node["dims"]])


@lowers("transpose", "swapaxes", "swapdims")
def transpose(lowerer: Lowerer, node: Node) -> Value:
    rank = len(node.shape)
    order = list(range(rank))
    a, b = (node.get(n, node.get(o)) % rank for n, o in (("dim0", "axis0"), ("dim1", "axis1")))
    order[a], order[b] = b, a
    return permuted(lowerer.value(node["self"]), order)


@lowers("channel_shuffle")
def channel_shuffle(lowerer: Lowerer, node: Node) -> Value:
    """Channels (groups, each) become (each, groups)."""
    source, groups = node["self"], node["groups"]
    samples, channels, *positions = source.shape
    value = explicit(lowerer.value(source), source.shape)
    value = lowerer.reshaped(value, (samples, groups, channels // groups, *positions))
    value = permuted(value, [0, 2, 1, *range(3, len(value.seen))])
    return lowerer.reshaped(value, source.shape)


@lowers("t", "numpy_T", "mT")
def t(lowerer: Lowerer, node: Node) -> Value:
    rank = len(node.shape)
    order = [*range(rank - 2), *reversed(range(max(rank - 2, 0), rank))]
    return permuted(lowerer.value(node["self"]), order)


@lowers("expand", "expand_as", "broadcast_to")
def expand(lowerer: Lowerer, node: Node) -> Value:
    value = lowerer.value(node["self"])
    value = value.with_seen(((),) * (len(node.shape) - len(value.seen)) + value.seen)
    return explicit(value, tuple(1 if e % SAMPLES == 0 else e for e in node.shape))


@lowers("slice")
def slice_(lowerer: Lowerer, node: Node) -> Value:
    source, d = node["self"], node["dim"] % len(node.shape)
    extent = source.shape[d]
    if node.shape[d] == extent:
        return lowerer.value(source)
    if extent % SAMPLES == 0:
        raise Unsupported("it cuts the samples")
    start = _clamped(node["start"] or 0, extent)
    if node["step"] != 1:
        return _strided(lowerer, node, d, start)
    return _cut(lowerer, node, lowerer.value(source), d, start, node.shape[d])


def _strided(lowerer: Lowerer, node: Node, d: int, start: int) -> Value:
    """Each `step`th element of a dimension."""
    value, tensor, place = alone(lowerer, lowerer.value(node["self"]), d)
    kind = Slice(place, start, node.shape[d], node["step"])
    output = lowerer.model.graph.add(kind, [tensor], lowerer.name(node, suffix="slice"))
    return changed(value, output, d, place, (node.shape[d],))


@lowers("narrow")
def narrow(lowerer: Lowerer, node: Node) -> Value:
    source, d = node["self"], node["dim"] % len(node.shape)
    start = _clamped(node["start"], source.shape[d])
    return _cut(lowerer, node, lowerer.value(source), d, start, node["length"])


@lowers("select")
def select(lowerer: Lowerer, node: Node) -> Value:
    source = node["self"]
    d = node["dim"] % len(source.shape)
    if source.shape[d] % SAMPLES == 0:
        raise Unsupported("it picks a sample")
    start = _clamped(node["index"], source.shape[d])
    part = _cut(lowerer, node, lowerer.value(source), d, start, 1)
    return part.with_seen(run for i, run in enumerate(part.seen) if i != d)


@lowers(
    "split",
    "chunk",
    "split_with_sizes",
    "unsafe_split",
    "unsafe_chunk",
    "unbind",
    "tensor_split",
    "hsplit",
    "vsplit",
    "dsplit",
)
def split(lowerer: Lowerer, node: Node) -> tuple[Value, ...]:
    source, rank = node["self"], len(node["self"].shape)
    own = {"hsplit": min(rank - 1, 1), "vsplit": 0, "dsplit": 2}
    d = own.get(node.op, node.get("dim", 0)) % rank
    value, start = lowerer.value(source), 0
    parts: list[Value] = []
    if source.shape[d] % SAMPLES == 0:
        raise Unsupported("it cuts the samples")
    read = {user["index"] for user in lowerer.users[node] if user.op == "getitem"}
    for i, type_ in enumerate(node.type):
        size = 1 if node.op == "unbind" else type_.shape[d]
        if i in read:
            part = _cut(lowerer, node, value, d, start, size, f"{i}")
            if node.op == "unbind":
                part = part.with_seen(run for k, run in enumerate(part.seen) if k != d)
        else:
            part = value  # of no use
        parts.append(part)
        start += size
    return tuple(parts)


@lowers("getitem")
def getitem(lowerer: Lowerer, node: Node) -> Value:
    results = lowerer.results[node["self"]]
    assert isinstance(results, tuple)
    part: Value = results[node["index"]]
    return part


@lowers("cat")
def cat(lowerer: Lowerer, node: Node) -> Value:
    sources = [s for s in node["tensors"] if 0 not in s.shape]
    d = node["dim"] % len(node.shape)
    return _joined(lowerer, node, [lowerer.value(s) for s in sources], sources, d)


@lowers("stack")
def stack(lowerer: Lowerer, node: Node) -> Value:
    d = node["dim"] % len(node.shape)
    values = []
    for source in node["tensors"]:
        value = lowerer.value(source)
        values.append(value.with_seen((*value.seen[:d], (), *value.seen[d:])))
    return _joined(lowerer, node, values, node["tensors"], d, stacked=True)


@lowers("index")
def index(lowerer: Lowerer, node: Node) -> Value:
    """Indexing by counting numbers is a view; of a parameter's rows, an embedding."""
    source, indices = node["self"], node["indices"]
    value = explicit(lowerer.value(source), source.shape)
    dims = [d for d, i in enumerate(indices) if i is not None]
    arrays = [indices[d] for d in dims]
    if any(i.op != "constant" for i in arrays):
        return _of_each_sample(lowerer, node, value, dims, arrays)
    if dims != list(range(len(dims))):
        return gathered(lowerer, node, value, source.shape, dims, arrays)
    rank = max(len(i.shape) for i in arrays)
    seen: list[tuple[Axis, ...]] = [()] * rank
    for d, i in enumerate(arrays):
        place = _counting(i, source.shape[d])
        if place is None:
            if len(arrays) == 1 and source.op in WEIGHTS and len(source.shape) == 2:
                from flexlegion.importers.lower.sequences import rows_of

                return rows_of(lowerer, node, source, i)
            return gathered(lowerer, node, value, source.shape, dims, arrays)
        if source.shape[d] > 1:
            seen[rank - place] = value.seen[d]
    return value.with_seen([*seen, *value.seen[len(dims) :]])


def _of_each_sample(
    lowerer: Lowerer, node: Node, value: Value, dims: list[int], arrays: list[Node]
) -> Value:
    """Of each sample one position, by its number: a product with a one among zeros.

    A number below 0 counts from the end.
    """
    from flexlegion.importers.lower.elementwise import apply
    from flexlegion.importers.lower.products import product

    source, counted = node["self"], arrays[0]
    every = counted.op == "constant" and counted.shape == (SAMPLES,) and dims == [0, 1]
    if not every or arrays[1].shape != (SAMPLES,) or len(source.shape) < 3:
        raise Unsupported("it reads elements whose place depends on the data")
    samples = known(counted).reshape(-1)
    if not np.array_equal(samples, np.arange(len(samples))) or not source.type.is_float:
        raise Unsupported("it reads elements whose place depends on the data")
    count = source.shape[1]
    places = np.arange(count, dtype=np.float32)
    constant = Node("constant", {}, Type(places.shape, "float32"), node.path, value=places)
    number = lowerer.value(arrays[1])
    formula = f"(where((x0 < 0.0), (x0 + {float(count)}), x0) == x1)"
    operands = [number.with_seen((*number.seen, ())), plain(constant, places.shape)]
    chosen = apply(lowerer, formula, operands, lowerer.name(node, suffix="is"))
    chosen = chosen.with_seen((chosen.seen[0], (), chosen.seen[1]))
    rest = tuple(axis for run in value.seen[2:] for axis in run)
    rows = value.with_seen((value.seen[0], value.seen[1], rest))
    flat = product(lowerer, node, chosen, rows)
    result = flat.with_seen((flat.seen[0], flat.seen[2]))
    return lowerer.reshaped(result, node.shape)


@lowers("index_select")
def index_select(lowerer: Lowerer, node: Node) -> Result:
    """Indexing along one dimension, which is kept where its index is a single number."""
    d, places = node["dim"] % len(node.shape), node["index"]
    if places.op == "constant" and not places.shape:
        places = replace(places, type=Type((1,), places.type.dtype), value=known(places).reshape(1))
    args = {"self": node["self"], "indices": [*[None] * d, places]}
    return index(lowerer, replace(node, op="index", args=args))


def _counting(node: Node, extent: int) -> int | None:
    """The dimension, counted from the end, along which an index counts 0, 1, ...; None if none."""
    array = known(node)
    if extent == 1:
        return 1 if not array.any() else None
    long = [d for d, e in enumerate(array.shape) if e > 1]
    if len(long) != 1 or node.shape[long[0]] != extent:
        return None
    if not np.array_equal(array.reshape(-1), np.arange(array.size)):
        return None
    return array.ndim - long[0]


def _clamped(index: int, extent: int) -> int:
    return min(max(index + extent if index < 0 else index, 0), extent)


def _cut(
    lowerer: Lowerer, node: Node, value: Value, d: int, start: int, size: int, part: str = ""
) -> Value:
    """The range [start, start + size) of a dimension that is seen."""
    extent = (node["self"] if isinstance(node["self"], Node) else node).shape[d]
    if not value.seen[d] or size == extent:
        return value
    if all(axis.repeated for axis in value.seen[d]):
        run = (Axis(size, repeated=True),) if size > 1 else ()
        return value.with_seen((*value.seen[:d], run, *value.seen[d + 1 :]))
    value = lowerer.in_graph(lowerer.fused(value, d))
    (axis,) = value.seen[d]
    runs, place = _alone(value, axis)
    tensor = lowerer.arranged(value, runs)
    inner = extent_of(runs[place][1:])
    suffix = "slice" if not part else f"slice.{part}"
    kind = Slice(place, start * inner, size * inner)
    tensor = lowerer.model.graph.add(kind, [tensor], lowerer.name(node, suffix=suffix))
    new = (Axis(size),) if size > 1 else ()
    stored = tuple(tuple(n for a in run for n in (new if a is axis else (a,))) for run in runs)
    return Value(tensor, stored, (*value.seen[:d], new, *value.seen[d + 1 :]))


def _alone(value: Value, axis: Axis) -> tuple[list[tuple[Axis, ...]], int]:
    """An arrangement in which an axis is the major one of its dimension, and which that is."""
    runs: list[tuple[Axis, ...]] = []
    for run in value.stored:
        if axis in run and run[0] is not axis:
            at = run.index(axis)
            runs += [run[:at], run[at:]]
        else:
            runs.append(run)
    if len(runs) > MAX_RANK:  # join two neighbours, neither of which is the axis's
        for i in range(1, len(runs) - 1):
            if axis not in runs[i + 1]:
                runs[i : i + 2] = [(*runs[i], *runs[i + 1])]
                break
    return runs, next(i for i, run in enumerate(runs) if axis in run)


def _joined(
    lowerer: Lowerer,
    node: Node,
    values: list[Value],
    sources: Sequence[Node],
    d: int,
    stacked: bool = False,
) -> Value:
    """Values one after the other along a dimension that is seen."""
    from flexlegion.importers.lower.elementwise import align_parts

    if node.shape[d] % SAMPLES == 0:
        raise Unsupported("it joins samples")
    if len(values) == 1:
        return values[0]
    extents = [1 if stacked else source.shape[d] for source in sources]
    shapes = [(*node.shape[:d], extent, *node.shape[d + 1 :]) for extent in extents]
    parts, place = align_parts(lowerer, values, shapes, d)
    tensors = [lowerer.over_samples(t) if parts.stored[0] else t for t in parts.tensors]
    joined = lowerer.model.graph.add(Concat(place), tensors, lowerer.name(node))
    return Value(joined, parts.stored, parts.seen)
