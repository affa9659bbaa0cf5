"""Images enlarged: transposed convolutions, up-sampling."""

from __future__ import annotations

from dataclasses import replace

from flexlegion.graph.initializers import Zeros
from flexlegion.importers.lower.base import Lowerer, Unsupported, lowers
from flexlegion.importers.lower.images import channels_last, from_channels_last, numbers
from flexlegion.importers.lower.products import WEIGHTS
from flexlegion.importers.program import Node
from flexlegion.importers.views import Value
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
    source = node.get("input", node.get("self"))
    before, after = source.shape[2:], node.shape[2:]
    if any(a % b for b, a in zip(before, after, strict=True)):
        raise Unsupported(
            f"it resizes {list(before)} positions to {list(after)}; only whole factors are possible"
        )
    rows, columns = (a // b for b, a in zip(before, after, strict=True))
    kind = "nearest" if "nearest" in node.op else "bilinear"
    operator = Resize2D(kind, rows, columns, bool(node.get("align_corners")))
    tensor = channels_last(lowerer, lowerer.value(source))
    output = lowerer.model.graph.add(operator, [tensor], lowerer.name(node))
    return from_channels_last(output, node.shape)
