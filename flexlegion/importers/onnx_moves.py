"""What ONNX's operators that move or pick elements are in the importers' internal form."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from flexlegion.importers.onnx_conversions import Unreadable, converts
from flexlegion.importers.onnx_file import OnnxNode
from flexlegion.importers.onnx_reader import Reader, number, numbers, result
from flexlegion.importers.program import SAMPLES, Node, Type


@converts("Reshape", "Flatten", "Squeeze", "Unsqueeze", inputs=2, attributes="allowzero axis")
def reshape(reader: Reader, node: OnnxNode) -> Node:
    return result(reader, node, "reshape", {"self": reader.operand(node.inputs[0])})


@converts("Transpose", attributes="perm")
def transpose(reader: Reader, node: OnnxNode) -> Node:
    x = reader.operand(node.inputs[0])
    order = node.get("perm") or list(reversed(range(len(x.shape))))
    return result(reader, node, "permute", {"self": x, "dims": list(order)})


@converts("Expand", inputs=2)
def expand(reader: Reader, node: OnnxNode) -> Node:
    x, shape = reader.operand(node.inputs[0]), reader.type(node.outputs[0]).shape
    if SAMPLES in x.shape and len(shape) > len(x.shape):
        raise Unreadable("it puts a dimension before the samples")
    return result(reader, node, "expand", {"self": x})


@converts("Concat", inputs=None, attributes="axis")
def concat(reader: Reader, node: OnnxNode) -> Node:
    parts = [reader.operand(name) for name in node.inputs]
    return result(reader, node, "cat", {"tensors": parts, "dim": node.get("axis")})


@converts("Split", inputs=2, attributes="axis num_outputs")
def split(reader: Reader, node: OnnxNode) -> list[Node]:
    x, d = reader.operand(node.inputs[0]), node.get("axis", 0)
    types = tuple(reader.type(name) for name in node.outputs)
    sizes = [type_.shape[d] for type_ in types]
    whole = reader.add("split_with_sizes", {"self": x, "split_sizes": sizes, "dim": d}, node, types)
    return [
        reader.add("getitem", {"self": whole, "index": i}, node, type_)
        for i, type_ in enumerate(types)
    ]


@converts("SplitToSequence", inputs=2, attributes="axis keepdims")
def split_to_sequence(reader: Reader, node: OnnxNode) -> list[Node]:
    """Equal parts, or parts of given sizes, which `SequenceAt` picks from."""
    x, d = reader.operand(node.inputs[0]), node.get("axis", 0) % len(reader.shape(node.inputs[0]))
    given = reader.array(node.inputs[1]) if node.has(1) else np.array(1)
    extent = x.shape[d]
    if given.ndim:
        sizes = [int(size) for size in given]
    else:
        step = int(given)
        sizes = [min(step, extent - start) for start in range(0, extent, step)]
    if not node.get("keepdims", 1) and not node.has(1):
        raise Unreadable("it leaves out the dimension that it splits")
    types = tuple(Type((*x.shape[:d], size, *x.shape[d + 1 :]), x.type.dtype) for size in sizes)
    whole = reader.add("split_with_sizes", {"self": x, "split_sizes": sizes, "dim": d}, node, types)
    return [
        reader.add("getitem", {"self": whole, "index": i}, node, type_)
        for i, type_ in enumerate(types)
    ]


@converts("SequenceAt", inputs=2)
def sequence_at(reader: Reader, node: OnnxNode) -> Node:
    parts = reader.sequences[node.inputs[0]]
    part = parts[int(reader.array(node.inputs[1]))]
    assert part is not None
    return part


@converts("Slice", inputs=5)
def slice_(reader: Reader, node: OnnxNode) -> Node:
    x = reader.operand(node.inputs[0])
    starts, ends = ([int(n) for n in reader.sizes(node.inputs[i]).reshape(-1)] for i in (1, 2))
    axes = numbers(reader, node, 3) if node.has(3) else list(range(len(starts)))
    steps = numbers(reader, node, 4) if node.has(4) else [1] * len(starts)
    if min(steps) < 1:
        raise Unreadable("it turns a dimension round")
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        d = axis % len(x.shape)
        extent = x.shape[d]
        if extent % SAMPLES and not all(_is_certain(reader, node.inputs[i]) for i in (1, 2)):
            raise Unreadable("its part depends on the number of samples, which may be any")
        first = min(max(start + extent if start < 0 else start, 0), extent)
        last = min(max(end + extent if end < 0 else end, 0), extent)
        count = max(0, -(-(last - first) // step))
        type_ = Type((*x.shape[:d], count, *x.shape[d + 1 :]), x.type.dtype)
        args = {"self": x, "dim": d, "start": first, "end": last, "step": step}
        x = reader.add("slice", args, node, type_)
    return x


@converts("Gather", inputs=2, attributes="axis")
def gather(reader: Reader, node: OnnxNode) -> Node:
    """Rows of a table, a part of a dimension, or elements by constant numbers."""
    table, indices = node.inputs
    axis = node.get("axis", 0) % len(reader.shape(table))
    if not reader.is_known(indices):
        if axis != 0 or not reader.is_known(table):
            raise Unreadable("it reads elements whose place depends on the data")
        if len(reader.shape(table)) != 2:
            raise Unreadable("it looks up other than rows of a table")
        args = {"weight": reader.parameter(table), "indices": reader.operand(indices)}
        return result(reader, node, "embedding", args)
    numbers = reader.array(indices)
    extent = reader.shape(table)[axis]
    if (numbers < 0).any():  # from the end
        numbers = np.where(numbers < 0, numbers + extent, numbers)
    x = reader.operand(table)
    if numbers.ndim == 0:
        part = {"self": x, "dim": axis, "index": int(numbers)}
        return result(reader, node, "select", part)
    if axis == 0 and x.op == "parameter" and len(x.shape) == 2:
        args = {"weight": x, "indices": reader.constant(numbers)}
        return result(reader, node, "embedding", args)
    lists: list[Node | None] = [None] * axis
    if _counts(numbers) and len(x.shape) == 1 and prod(reader.shape(indices)) == x.shape[0]:
        return result(reader, node, "reshape", {"self": x})  # all elements in their order
    picked = reader.constant(numbers, indices)
    return result(reader, node, "index", {"self": x, "indices": [*lists, picked]})


@converts("GatherND", inputs=2, attributes="batch_dims")
def gather_nd(reader: Reader, node: OnnxNode) -> Node:
    """Elements by constant numbers of several dimensions, behind those of the samples."""
    batch = node.get("batch_dims", 0)
    numbers = reader.array(node.inputs[1])
    x = reader.operand(node.inputs[0])
    if batch and not (numbers == numbers[(slice(1),) * batch]).all():
        raise Unreadable("it reads other elements of each sample")
    numbers = numbers[(0,) * batch]
    shape = reader.shape(node.inputs[1])[batch:-1]
    lists: list[Node | None] = [None] * batch
    parts = [numbers[..., i] for i in range(int(numbers.shape[-1]))]
    lists += [reader.constant(values, shape=its) for values, its in _thinned(parts, shape)]
    return result(reader, node, "index", {"self": x, "indices": lists})


def _thinned(lists: list[Any], shape: tuple[int, ...]) -> list[tuple[Any, tuple[int, ...]]]:
    """Each list without the dimensions along which it repeats itself and another one does not."""
    shapes = [list(shape) for _ in lists]
    for d in range(len(shape)):
        repeats = [bool((values == np.take(values, [0], d)).all()) for values in lists]
        for i, alike in enumerate(repeats):
            if alike and not all(repeats):
                lists[i] = np.take(lists[i], [0], d)
                shapes[i][d] = 1
    return [(values, tuple(its)) for values, its in zip(lists, shapes, strict=True)]


@converts("Pad", inputs=4, attributes="mode")
def pad(reader: Reader, node: OnnxNode) -> Node:
    x = reader.operand(node.inputs[0])
    amounts, rank = numbers(reader, node, 1), len(x.shape)
    if any(amount < 0 for amount in amounts):
        raise Unreadable("it cuts off what it pads (negative amounts)")
    axes = numbers(reader, node, 3) if node.has(3) else list(range(rank))
    pairs = {axis % rank: (amounts[i], amounts[i + len(axes)]) for i, axis in enumerate(axes)}
    mode = {"edge": "replicate", "wrap": "circular"}.get(node.get("mode", "constant"))
    args = {
        "self": x,
        "pad": [n for d in reversed(range(rank)) for n in pairs.get(d, (0, 0))],
        "mode": mode or node.get("mode", "constant"),
        "value": number(reader, node, 2),
    }
    return result(reader, node, "pad", args)


def _is_certain(reader: Reader, name: str) -> bool:
    """Whether constant numbers are the same for any number of samples."""
    try:
        reader.array(name)
    except Unreadable:
        return False
    return True


def _counts(numbers: Any) -> bool:
    """Whether numbers are 0, 1, 2 and so on."""
    return bool(np.array_equal(numbers.reshape(-1), np.arange(numbers.size)))
