"""Images enlarged: transposed convolutions, up-sampling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flexlegion.graph.initializers import Zeros
from flexlegion.importers.lower.base import Lowerer, Unsupported, lowers
from flexlegion.importers.lower.gathering import taken
from flexlegion.importers.lower.images import channels_last, from_channels_last, numbers
from flexlegion.importers.lower.products import WEIGHTS, multiplied
from flexlegion.importers.program import Array, Node
from flexlegion.importers.views import Value, explicit
from flexlegion.ops.conv2d_transpose import Conv2DTranspose
from flexlegion.ops.resize2d import Resize2D


@lowers("conv_transpose2d", "conv_transpose1d")
def transposed(lowerer: Lowerer, node: Node) -> Value:
    """PyTorch's weight is (in, out, kh, kw), or (in, out, k): a sequence is an image of one row."""
    weight, bias = node["weight"], node["bias"]
    if weight.op not in WEIGHTS or (bias is not None and bias.op not in WEIGHTS):
        raise Unsupported("its weights are computed, not parameters")
    if node["groups"] != 1:
        raise Unsupported("it is transposed and has groups")
    value = lowerer.value(weight)
    flat = node.op == "conv_transpose1d"
    inputs, filters, *window = value.seen
    rows, columns = ((), *window) if flat else window
    kernel, layout = lowerer.weight(weight, (rows, columns, filters, inputs), value)
    weights = [(weight, layout)]

    def pair(name: str, of_row: int) -> tuple[int, ...]:
        return (of_row, *numbers(node[name], 1)) if flat else numbers(node[name], 2)

    (sh, sw), (dh, dw) = pair("stride", 1), pair("dilation", 1)
    (ph, pw), (eh, ew) = pair("padding", 0), pair("output_padding", 0)
    out, (kh, kw) = weight.shape[1], (1, *weight.shape[2:])[-2:]
    biased = bias is not None
    kind = Conv2DTranspose(out, kh, kw, sh, sw, ph, pw, eh, ew, dh, dw, biased, kernel, Zeros())
    if bias is not None:
        vector = lowerer.value(bias)
        values, bias_layout = lowerer.weight(bias, vector.seen, vector)
        kind = replace(kind, bias_initializer=values)
        weights.append((bias, bias_layout))
    tensor = channels_last(lowerer, lowerer.value(node["input"]), flat)
    output = lowerer.apply(kind, [tensor], lowerer.name(node), weights).output
    return from_channels_last(output, node.shape, flat)


@lowers("upsample_nearest2d", "upsample_bilinear2d")
def upsampled(lowerer: Lowerer, node: Node) -> Value:
    """By whole factors, one operator; else as `resampled`."""
    source = node.get("input", node.get("self"))
    before, after = source.shape[2:], node.shape[2:]
    if any(a % b for b, a in zip(before, after, strict=True)):
        return resampled(lowerer, node)
    rows, columns = (a // b for b, a in zip(before, after, strict=True))
    kind = "nearest" if "nearest" in node.op else "bilinear"
    operator = Resize2D(kind, rows, columns, bool(node.get("align_corners")))
    tensor = channels_last(lowerer, lowerer.value(source))
    output = lowerer.model.graph.add(operator, [tensor], lowerer.name(node))
    return from_channels_last(output, node.shape)


@lowers(
    "upsample_bicubic2d",
    "upsample_linear1d",
    "upsample_nearest1d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
)
def resampled(lowerer: Lowerer, node: Node) -> Value:
    """Along each dimension, elements by their numbers, or a product with a matrix of weights."""
    source = node.get("input", node.get("self"))
    value = explicit(lowerer.value(source), source.shape)
    dims = len(source.shape) - 2
    scales = node.get("scale_factors") or [
        node.get(name) for name in ("scales_h", "scales_w", "scales")[: 2 if dims == 2 else 3]
    ]
    for i in range(dims):
        size, count = source.shape[2 + i], node.shape[2 + i]
        factor = scales[i] if i < len(scales) else None
        corners = bool(node.get("align_corners"))
        if size == count and (factor in (None, 1.0)):
            continue
        if corners:
            step = (size - 1) / (count - 1) if count > 1 else 0.0
        else:
            step = 1 / factor if factor else size / count
        numbers = np.arange(count)
        if "nearest" in node.op:
            middle = 0.5 if "exact" in node.op else 0.0
            # In single precision, as in PyTorch: an element more or less can depend on it.
            places = np.floor(np.float32(step) * (numbers + middle).astype(np.float32))
            picked = places.clip(0, size - 1).astype(np.int64)
            value = taken(lowerer, node, value, 2 + i, picked)
            continue
        at = numbers * step if corners else (numbers + 0.5) * step - 0.5
        weights = _cubic(at, size) if "cubic" in node.op else _linear(at, size)
        value = multiplied(lowerer, node, value, 2 + i, weights.astype(np.float32))
    return value


def _linear(at: Array, size: int) -> Array:
    """Weights (result, element) of the two elements beside each place."""
    at = at.clip(0, size - 1)
    low = np.floor(at).astype(np.int64)
    result: Array = np.zeros((len(at), size))
    rows = np.arange(len(at))
    np.add.at(result, (rows, low), 1 - (at - low))
    np.add.at(result, (rows, (low + 1).clip(0, size - 1)), at - low)
    return result


def _cubic(at: Array, size: int) -> Array:
    """Weights of four elements (Keys, 1981, with a = -0.75); beyond an end, the last one."""
    a = -0.75
    low = np.floor(at).astype(np.int64)
    result: Array = np.zeros((len(at), size))
    for offset in (-1, 0, 1, 2):
        x = np.abs(at - low - offset)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        places = (low + offset).clip(0, size - 1)
        np.add.at(result, (np.arange(len(at)), places), np.where(x <= 1, near, far))
    return result
