"""Convolutions and pooling: channels last here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flexlegion.graph.initializers import Zeros
from flexlegion.graph.tensor import Tensor
from flexlegion.importers.lower.base import Lowerer, Unsupported, lowers
from flexlegion.importers.lower.products import WEIGHTS
from flexlegion.importers.program import Node, Shape
from flexlegion.importers.views import Axis, Value, runs_of
from flexlegion.ops.conv1d import Conv1D, Pool1D
from flexlegion.ops.conv2d import Conv2D, spanned
from flexlegion.ops.pool2d import Pool2D


@lowers("conv2d", "conv1d", "convolution")
def convolution(lowerer: Lowerer, node: Node) -> Value:
    weight = node["weight"]
    dims = len(weight.shape) - 2
    if weight.op not in WEIGHTS:
        raise Unsupported("its weight is computed, not a parameter")
    if node.get("transposed") or dims not in (1, 2):
        raise Unsupported("it is transposed, or of other than one or two dimensions")
    dilation, stride = (numbers(node[name], dims) for name in ("dilation", "stride"))
    spans = tuple(spanned(k, d) for k, d in zip(weight.shape[2:], dilation, strict=True))
    padding, extra = _padding(node["padding"], spans)
    filters, groups = weight.shape[0], node["groups"]
    # Only Conv2D has groups and dilation; for it, a sequence is an image of one row.
    flat = dims == 1 and (groups, dilation) != (1, (1,))
    value = lowerer.value(weight)
    rows = ((),) if flat else ()
    order = (value.seen[0], *rows, *value.seen[2:], value.seen[1])
    kernel, layout = lowerer.weight(weight, order, value)
    weights = [(weight, layout)]
    bias = node["bias"]
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
    if bias is not None:
        vector = lowerer.value(bias)
        if bias.op not in WEIGHTS:
            raise Unsupported("its bias is computed, not a parameter")
        values, bias_layout = lowerer.weight(bias, vector.seen, vector)
        kind = replace(kind, bias_initializer=values)
        weights.append((bias, bias_layout))
    tensor = channels_last(lowerer, lowerer.value(node["input"]), flat)
    if any(extra):  # at the ends alone: zeros of their own
        amounts = [*((0, more) for more in (0,) * flat + extra), (0, 0)]
        tensor = lowerer.model.pad(tensor, amounts, name=lowerer.name(node, suffix="pad"))
    output = lowerer.apply(kind, [tensor], lowerer.name(node), weights).output
    return from_channels_last(output, node.shape, flat)


@lowers("max_pool2d", "avg_pool2d", "max_pool1d", "avg_pool1d")
def pool(lowerer: Lowerer, node: Node) -> Value:
    dims = int(node.op[-2])
    kernel = numbers(node["kernel_size"], dims)
    stride = numbers(node["stride"], dims) if node["stride"] else kernel
    padding = numbers(node["padding"], dims)
    if set(numbers(node.get("dilation") or 1, dims)) != {1}:
        raise Unsupported(f"its dilation is {node['dilation']}; only 1 is possible")
    if node.get("divisor_override") is not None:
        raise Unsupported("it has a divisor of its own")
    shape = node["self"].shape
    if node["ceil_mode"]:
        sizes = zip(shape[-dims:], kernel, stride, padding, strict=True)
        floor = [(e + 2 * p - k) // s + 1 for e, k, s, p in sizes]
        if floor != list(node.shape[-dims:]):
            raise Unsupported("it rounds the number of windows up (ceil_mode)")
    kind = "max" if node.op.startswith("max") else "average"
    counts = node.get("count_include_pad", True)
    return _pooled(lowerer, node, kind, kernel, stride, padding, counts, node.shape)


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
        raise Unsupported(
            f"it pools {list(before)} positions to {list(after)}, which do not divide them"
        )
    kernel = tuple(b // a for b, a in zip(before, after, strict=True))
    return _pooled(lowerer, node, kind, kernel, kernel, (0,) * dims, True, shape)


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
    kind: str,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    counts: bool,
    shape: Shape,
) -> Value:
    operator: Pool1D | Pool2D
    if len(kernel) == 2:
        (kh, kw), (sh, sw), (ph, pw) = kernel, stride, padding
        operator = Pool2D(kind, kh, kw, sh, sw, ph, pw, counts)
    else:
        operator = Pool1D(kind, kernel[0], stride[0], padding[0], counts)
    tensor = channels_last(lowerer, lowerer.value(node["self"]))
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
