"""Convolutions and pooling: channels last here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from flexlegion.graph.initializers import Initializer, Zeros
from flexlegion.graph.tensor import Tensor
from flexlegion.importers.lower.base import Lowerer, Unsupported, lowers
from flexlegion.importers.lower.elementwise import apply
from flexlegion.importers.lower.gathering import taken
from flexlegion.importers.lower.products import WEIGHTS, multiplied
from flexlegion.importers.program import Array, Node, Shape, Type
from flexlegion.importers.views import Axis, Value, explicit, plain, runs_of
from flexlegion.ops.conv1d import Conv1D, Pool1D
from flexlegion.ops.conv2d import Conv2D, spanned
from flexlegion.ops.pool2d import Pool2D


@lowers("conv2d", "conv1d", "convolution")
def convolution(lowerer: Lowerer, node: Node) -> Value:
    weight = node["weight"]
    dims = len(weight.shape) - 2
    if dims not in (1, 2) or (node.get("transposed") and dims != 2):
        raise Unsupported("it is of other than one or two dimensions")
    if node.get("transposed"):
        from flexlegion.importers.lower.resizing import transposed

        return transposed(lowerer, node)
    dilation, stride = (numbers(node[name], dims) for name in ("dilation", "stride"))
    spans = tuple(spanned(k, d) for k, d in zip(weight.shape[2:], dilation, strict=True))
    padding, extra = _padding(node["padding"], spans)
    filters, groups = weight.shape[0], node["groups"]
    # Only Conv2D has groups and dilation; for it, a sequence is an image of one row.
    flat = dims == 1 and (groups, dilation) != (1, (1,))
    value = lowerer.value(weight)
    rows = ((),) if flat else ()
    order = (value.seen[0], *rows, *value.seen[2:], value.seen[1])
    bias = node["bias"]
    is_computed = any(source is not None and source.op not in WEIGHTS for source in (weight, bias))
    kernel: Initializer = Zeros()
    if not is_computed:
        kernel, layout = lowerer.weight(weight, order, value)
        weights = [(weight, layout)]
    activation = node.get("activation", "none")
    kind: Conv1D | Conv2D
    if dims == 2 or flat:
        (kh, kw), (sh, sw), (dh, dw) = (
            (1,) * flat + tuple(each) for each in (weight.shape[2:], stride, dilation)
        )
        ph, pw = (0,) * flat + padding
        kind = Conv2D(
            filters,
            kh,
            kw,
            sh,
            sw,
            ph,
            pw,
            groups,
            bias is not None,
            activation,
            kernel,
            Zeros(),
            dh,
            dw,
        )
    else:
        kind = Conv1D(
            filters,
            weight.shape[2],
            stride[0],
            padding[0],
            bias is not None,
            activation,
            kernel,
            Zeros(),
        )
    if bias is not None and not is_computed:
        vector = lowerer.value(bias)
        values, bias_layout = lowerer.weight(bias, vector.seen, vector)
        kind = replace(kind, bias_initializer=values)
        weights.append((bias, bias_layout))
    tensor = channels_last(lowerer, lowerer.value(node["input"]), flat)
    if any(extra):  # at the ends alone: zeros of their own
        amounts = [*((0, more) for more in (0,) * flat + extra), (0, 0)]
        tensor = lowerer.model.pad(tensor, amounts, name=lowerer.name(node, suffix="pad"))
    name = lowerer.name(node)
    if is_computed:
        tensors = [lowerer.as_weight(value, order)]
        if bias is not None:
            vector = lowerer.value(bias)
            tensors.append(lowerer.as_weight(vector, vector.seen))
        output = lowerer.apply_given(kind, [tensor], name, tensors).output
    else:
        output = lowerer.apply(kind, [tensor], name, weights).output
    return from_channels_last(output, node.shape, flat)


@dataclass(frozen=True)
class Windows:
    """Along one dimension, windows of PyTorch's poolings.

    Parameters
    ----------
    extent
        Elements.
    kernel, stride
        Places that a window spans, and those from one to the next.
    padding
        Places before the first element, and as many behind the last one.
    """

    extent: int
    kernel: int
    stride: int
    padding: int

    def count(self, ceil_mode: bool) -> int:
        """How many there are; rounded up, but none begins behind the elements."""
        places = self.extent + 2 * self.padding - self.kernel
        if not ceil_mode:
            return places // self.stride + 1
        count = -(-places // self.stride) + 1
        return count - ((count - 1) * self.stride >= self.extent + self.padding)

    def beyond(self, count: int) -> int:
        """Places behind the padding that the last of so many windows has."""
        last = (count - 1) * self.stride + self.kernel
        return max(0, last - self.extent - 2 * self.padding)

    def sizes(self, count: int, with_padding: bool) -> Array:
        """Places of each window that are elements, or with the padding, elements or padding."""
        first: Array = np.arange(count) * self.stride - self.padding
        around = self.padding if with_padding else 0
        low, high = -around, self.extent + around
        sizes: Array = (first + self.kernel).clip(low, high) - first.clip(low, high)
        return sizes


@lowers("max_pool2d", "avg_pool2d", "max_pool1d", "avg_pool1d")
def pool(lowerer: Lowerer, node: Node) -> Value:
    """Windows that `ceil_mode` adds reach beyond the padding: elements stand there here."""
    dims = int(node.op[-2])
    kernel = numbers(node["kernel_size"], dims)
    stride = numbers(node["stride"], dims) if node["stride"] else kernel
    padding = numbers(node["padding"], dims)
    if set(numbers(node.get("dilation") or 1, dims)) != {1}:
        raise Unsupported(f"its dilation is {node['dilation']}; only 1 is possible")
    before, after = node["self"].shape[-dims:], node.shape[-dims:]
    windows = [Windows(*each) for each in zip(before, kernel, stride, padding, strict=True)]
    if tuple(each.count(node["ceil_mode"]) for each in windows) != after:
        raise Unsupported("it has other windows than PyTorch's")
    more = [each.beyond(count) for each, count in zip(windows, after, strict=True)]
    if node.op.startswith("avg"):
        return _average(lowerer, node, windows, more)
    value = lowerer.value(node["self"])
    for d, (each, count) in enumerate(zip(windows, more, strict=True), 2):
        if count:  # a window that reaches there has the last element: again, it changes no maximum
            places = np.minimum(np.arange(each.extent + count), each.extent - 1)
            value = taken(lowerer, node, value, d, places)
    return _pooled(lowerer, node, channels_last(lowerer, value), "max", windows, node.shape)


def _average(lowerer: Lowerer, node: Node, windows: list[Windows], more: list[int]) -> Value:
    """With zeros behind the padding, as many as `more` says along each dimension."""
    tensor = channels_last(lowerer, lowerer.value(node["self"]))
    counts, divisor = node.get("count_include_pad", True), node.get("divisor_override")
    if divisor is None and not any(more):
        return _pooled(lowerer, node, tensor, "average", windows, node.shape, counts)
    if any(more):
        amounts = [*((0, count) for count in more), (0, 0)]
        tensor = lowerer.model.pad(tensor, amounts, name=lowerer.name(node, suffix="pad"))
    result = _pooled(lowerer, node, tensor, "average", windows, node.shape)
    sizes: Array = np.asarray(divisor or 1, np.float32)
    if divisor is None:
        for each, count in zip(windows, node.shape[-len(windows) :], strict=True):
            sizes = sizes[..., None] * each.sizes(count, counts).astype(np.float32)
    constant = Node("constant", {}, Type(sizes.shape, "float32"), node.path, value=sizes)
    # The average times all of a window's places is the sum of its elements.
    formula = f"(x0 * {float(prod(each.kernel for each in windows))!r} / x1)"
    operands = [result, plain(constant, sizes.shape)]
    return apply(lowerer, formula, operands, lowerer.name(node, suffix="scale"))


@lowers("adaptive_avg_pool2d", "adaptive_avg_pool1d", "mean_positions")
def adaptive_pool(lowerer: Lowerer, node: Node) -> Value:
    return _adaptive(lowerer, node, node.shape, "average")


@lowers("adaptive_max_pool2d", "adaptive_max_pool1d")
def adaptive_max_pool(lowerer: Lowerer, node: Node) -> tuple[Value, ...]:
    """The largest values, and where they are, which cannot be read here."""
    if any(user.op != "getitem" or user["index"] != 0 for user in lowerer.users[node]):
        raise Unsupported("the places of the largest values are read")
    return (_adaptive(lowerer, node, node.type[0].shape, "max"),)


def _adaptive(lowerer: Lowerer, node: Node, shape: Shape, kind: str) -> Value:
    dims = int(node.op[-2])
    before, after = node["self"].shape[-dims:], shape[-dims:]
    if all(a % b == 0 for b, a in zip(before, after, strict=True)):
        return _repeated(lowerer.value(node["self"]), before, after)
    if any(b % a for b, a in zip(before, after, strict=True)):
        if kind == "average":
            return _averaged(lowerer, node, before, after)
        raise Unsupported(
            f"it pools {list(before)} positions to {list(after)}, which do not divide them"
        )
    windows = [Windows(b, b // a, b // a, 0) for b, a in zip(before, after, strict=True)]
    tensor = channels_last(lowerer, lowerer.value(node["self"]))
    return _pooled(lowerer, node, tensor, kind, windows, shape)


@lowers("adaptive_avg_pool3d")
def adaptive_pool_3d(lowerer: Lowerer, node: Node) -> Value:
    return _averaged(lowerer, node, node["self"].shape[-3:], node.shape[-3:])


@lowers("avg_pool3d")
def pool_3d(lowerer: Lowerer, node: Node) -> Value:
    """Averages of windows, along each dimension by a product with a matrix."""
    kernel = numbers(node["kernel_size"], 3)
    stride = numbers(node["stride"], 3) if node["stride"] else kernel
    padding = numbers(node["padding"], 3)
    divisor, value = node.get("divisor_override"), lowerer.value(node["self"])
    value, first = explicit(value, node["self"].shape), len(node.shape) - 3
    for i in range(3):
        size, count = node["self"].shape[first + i], node.shape[first + i]
        windows = Windows(size, kernel[i], stride[i], padding[i])
        if windows.count(node["ceil_mode"]) != count:
            raise Unsupported("it pools to another number of positions than is known here")
        starts = np.arange(count)[:, None] * stride[i] - padding[i]
        inside = (np.arange(size) >= starts) & (np.arange(size) < starts + kernel[i])
        sizes = windows.sizes(count, bool(node["count_include_pad"]))[:, None]
        if divisor is not None:
            sizes = np.full_like(sizes, divisor if i == 0 else 1)
        if not np.array_equal(inside, np.eye(size)):
            matrix = (inside / sizes).astype(np.float32)
            value = multiplied(lowerer, node, value, first + i, matrix)
    return value


def _averaged(
    lowerer: Lowerer, node: Node, before: tuple[int, ...], after: tuple[int, ...]
) -> Value:
    """Averages of windows of several sizes: along each dimension, products with a matrix."""
    value, first = lowerer.value(node["self"]), len(node.shape) - len(before)
    value = explicit(value, node["self"].shape)
    for i, (size, count) in enumerate(zip(before, after, strict=True)):
        numbers = np.arange(count)
        starts, ends = numbers * size // count, -(-(numbers + 1) * size // count)
        places = np.arange(size)
        inside = (places >= starts[:, None]) & (places < ends[:, None])
        matrix = (inside / (ends - starts)[:, None]).astype(np.float32)
        value = multiplied(lowerer, node, value, first + i, matrix)
    return value


def _repeated(value: Value, before: tuple[int, ...], after: tuple[int, ...]) -> Value:
    """Each position as often as the result has it; as it is where the numbers are equal."""
    factors = [a // b for b, a in zip(before, after, strict=True)]
    positions = [
        (*run, Axis(factor, repeated=True)) if factor > 1 else run
        for run, factor in zip(value.seen[-len(before) :], factors, strict=True)
    ]
    return value.with_seen((*value.seen[: -len(before)], *positions))


def _pooled(
    lowerer: Lowerer,
    node: Node,
    tensor: Tensor,
    kind: str,
    windows: list[Windows],
    shape: Shape,
    counts: bool = True,
) -> Value:
    operator: Pool1D | Pool2D
    if len(windows) == 2:
        h, w = windows
        sizes = (h.kernel, w.kernel, h.stride, w.stride, h.padding, w.padding)
        operator = Pool2D(kind, *sizes, counts)
    else:
        (line,) = windows
        operator = Pool1D(kind, line.kernel, line.stride, line.padding, counts)
    output = lowerer.model.graph.add(operator, [tensor], lowerer.name(node))
    return from_channels_last(output, shape)


def channels_last(lowerer: Lowerer, value: Value, flat: bool = False) -> Tensor:
    """A tensor (n, positions..., channels) of what is seen as (n, channels, positions...).

    With `flat`, (n, 1, positions, channels) of a sequence: an image of one row.
    """
    samples, channels, *positions = value.seen
    rows = ((),) if flat else ()
    return lowerer.arranged(lowerer.in_graph(value), [samples, *rows, *positions, channels])


def from_channels_last(tensor: Tensor, shape: Shape, flat: bool = False) -> Value:
    """Seen with the channels first, in this shape; of `channels_last`'s arrangement."""
    samples, channels, *positions = runs_of(shape)
    rows = ((),) if flat else ()
    return Value(tensor, (samples, *rows, *positions, channels), (samples, channels, *positions))


def numbers(value: Any, count: int) -> tuple[int, ...]:
    """One number for each axis, where one may stand for all."""
    given = tuple(value) if isinstance(value, list | tuple) else (value,)
    return given * count if len(given) == 1 else given


def _padding(value: Any, spans: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Zeros at both ends of each axis, and how many more at its last one."""
    none = (0,) * len(spans)
    if value == "same":
        return tuple((span - 1) // 2 for span in spans), tuple((span - 1) % 2 for span in spans)
    return none if value == "valid" else numbers(value, len(spans)), none
