"""What ONNX's layers are in the importers' internal form: products, windows, norms, sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flexlegion.importers.onnx_file import OnnxNode
from flexlegion.importers.onnx_reader import Reader, Unreadable, converts, result
from flexlegion.importers.program import Node, Type


@converts("Gemm")
def gemm(reader: Reader, node: OnnxNode) -> Node:
    if node.get("transA", 0) or node.get("alpha", 1.0) != 1 or node.get("beta", 1.0) != 1:
        raise Unreadable("it scales its terms, or transposes its first factor")
    x, weight = reader.operand(node.inputs[0]), reader.parameter(node.inputs[1])
    bias = reader.bias(node, 2)
    if node.get("transB", 0):
        return result(reader, node, "linear", {"input": x, "weight": weight, "bias": bias})
    if bias is None:
        return result(reader, node, "matmul", {"self": x, "other": weight})
    args = {"self": bias, "mat1": x, "mat2": weight, "alpha": 1, "beta": 1}
    return result(reader, node, "addmm", args)


@converts("MatMul")
def matmul(reader: Reader, node: OnnxNode) -> Node:
    second = node.inputs[1]
    weight = reader.is_known(second) and len(reader.shape(second)) == 2
    b = reader.parameter(second) if weight else reader.operand(second)
    return result(reader, node, "matmul", {"self": reader.operand(node.inputs[0]), "other": b})


def _window(reader: Reader, node: OnnxNode, kernel: Sequence[int]) -> dict[str, Any]:
    """Stride, dilation, and padding at both ends: (before, after) of each axis."""
    dims = len(kernel)
    strides, dilations = node.get("strides", [1] * dims), node.get("dilations", [1] * dims)
    pads = node.get("pads", [0] * 2 * dims)
    mode = node.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pairs = []
        extents = reader.shape(node.inputs[0])[2:]
        for e, k, s, d in zip(extents, kernel, strides, dilations, strict=True):
            total = max(0, (-(-e // s) - 1) * s + (k - 1) * d + 1 - e)
            less, more = total // 2, total - total // 2
            pairs.append((less, more) if mode == "SAME_UPPER" else (more, less))
    else:
        pairs = list(zip(pads[:dims], pads[dims:], strict=True))
    return {"stride": list(strides), "dilation": list(dilations), "pairs": pairs}


def _padded(reader: Reader, node: OnnxNode, x: Node, window: dict[str, Any]) -> Node:
    """x with zeros of its own where ends are padded differently; `window` gets its padding."""
    pairs = window.pop("pairs")
    window["padding"] = [before for before, _ in pairs]
    if all(before == after for before, after in pairs):
        return x
    window["padding"] = [0] * len(pairs)
    extents = (e + a + b for e, (a, b) in zip(x.shape[2:], pairs, strict=True))
    shape = (*x.shape[:2], *extents)
    amounts = [n for pair in reversed(pairs) for n in pair]
    args = {"self": x, "pad": amounts, "mode": "constant", "value": None}
    return reader.add("pad", args, node, Type(shape, x.type.dtype), "pad")


@converts("Conv")
def convolution(reader: Reader, node: OnnxNode) -> Node:
    weight = reader.parameter(node.inputs[1])
    dims = len(weight.shape) - 2
    window = _window(reader, node, weight.shape[2:])
    x = _padded(reader, node, reader.operand(node.inputs[0]), window)
    bias = reader.bias(node, 2)
    args = {"input": x, "weight": weight, "bias": bias, "groups": node.get("group", 1)}
    return result(reader, node, f"conv{dims}d", args | window)


@converts("ConvTranspose")
def transposed(reader: Reader, node: OnnxNode) -> Node:
    weight = reader.parameter(node.inputs[1])
    window = _window(reader, node, weight.shape[2:])
    pairs = window.pop("pairs")
    if len(pairs) != 2 or node.get("auto_pad", "NOTSET") != "NOTSET" or node.get("output_shape"):
        raise Unreadable("it is not of two dimensions, or its padding follows from its output")
    extra = node.get("output_padding", [0, 0])
    # Less padding at the end is more of the output.
    extra = [more + before - after for more, (before, after) in zip(extra, pairs, strict=True)]
    if min(extra) < 0:
        raise Unreadable("it pads its ends more than its beginnings")
    args = {
        "input": reader.operand(node.inputs[0]),
        "weight": weight,
        "bias": reader.bias(node, 2),
        "padding": [before for before, _ in pairs],
        "output_padding": extra,
        "groups": node.get("group", 1),
    }
    return result(reader, node, "conv_transpose2d", args | window)


@converts("MaxPool", "AveragePool")
def pool(reader: Reader, node: OnnxNode) -> Node:
    kernel = node.get("kernel_shape")
    window = _window(reader, node, kernel)
    most = node.op == "MaxPool"
    pairs = window["pairs"]
    if any(before != after for before, after in pairs):
        if not most:
            raise Unreadable("it pads both ends differently")
        raise Unreadable("it takes maxima over ends that are padded differently")
    args = {
        "self": reader.operand(node.inputs[0]),
        "kernel_size": list(kernel),
        "stride": window["stride"],
        "padding": [before for before, _ in pairs],
        "dilation": window["dilation"],
        "ceil_mode": bool(node.get("ceil_mode", 0)),
    }
    if not most:
        args["count_include_pad"] = bool(node.get("count_include_pad", 0))
    return result(reader, node, f"{'max' if most else 'avg'}_pool{len(kernel)}d", args)


@converts("GlobalAveragePool")
def global_pool(reader: Reader, node: OnnxNode) -> Node:
    x = reader.operand(node.inputs[0])
    dims = list(range(2, len(x.shape)))
    return result(reader, node, "mean", {"self": x, "dim": dims, "keepdim": True})


@converts("Resize")
def resize(reader: Reader, node: OnnxNode) -> Node:
    mode = node.get("mode", "nearest")
    place = node.get("coordinate_transformation_mode", "half_pixel")
    op = {"nearest": "upsample_nearest2d", "linear": "upsample_bilinear2d"}.get(mode)
    known = (
        ("asymmetric",)
        if mode == "nearest"
        else ("half_pixel", "pytorch_half_pixel", "align_corners")
    )
    if op is None or place not in known:
        raise Unreadable(f"it resizes by '{mode}' with '{place}'")
    args = {"input": reader.operand(node.inputs[0]), "align_corners": place == "align_corners"}
    return result(reader, node, op, args)


@converts("BatchNormalization")
def batch_norm(reader: Reader, node: OnnxNode) -> Node:
    """Running averages keep ONNX's `momentum` of themselves."""
    x, scale, bias, mean, variance = node.inputs
    args = {
        "input": reader.operand(x),
        "weight": reader.parameter(scale),
        "bias": reader.parameter(bias),
        "running_mean": reader.buffer(mean),
        "running_var": reader.buffer(variance),
        "training": reader.train_batch_norm,
        "momentum": 1 - node.get("momentum", 0.9),
        "eps": node.get("epsilon", 1e-5),
    }
    return result(reader, node, "batch_norm", args)


@converts("LayerNormalization", "RMSNormalization")
def layer_norm(reader: Reader, node: OnnxNode) -> Node:
    x = reader.operand(node.inputs[0])
    axis = node.get("axis", -1) % len(x.shape)
    args = {
        "input": x,
        "normalized_shape": list(x.shape[axis:]),
        "weight": reader.parameter(node.inputs[1]) if node.has(1) else None,
        "bias": reader.parameter(node.inputs[2]) if node.has(2) else None,
        "eps": node.get("epsilon", 1e-5),
    }
    return result(reader, node, "layer_norm" if node.op.startswith("L") else "rms_norm", args)


@converts("GroupNormalization")
def group_norm(reader: Reader, node: OnnxNode) -> Node:
    args = {
        "input": reader.operand(node.inputs[0]),
        "num_groups": node.get("num_groups"),
        "weight": reader.parameter(node.inputs[1]),
        "bias": reader.parameter(node.inputs[2]),
        "eps": node.get("epsilon", 1e-5),
    }
    return result(reader, node, "group_norm", args)


@converts("Attention")
def attention(reader: Reader, node: OnnxNode) -> Node:
    """Opset 23's; queries, keys and values of four dimensions, or with their heads merged."""
    if any(node.has(i) for i in (4, 5)) or node.get("softcap", 0.0):
        raise Unreadable("it continues from earlier keys, or caps its scores")
    heads = {0: node.get("q_num_heads"), 1: node.get("kv_num_heads"), 2: node.get("kv_num_heads")}
    parts = [reader.operand(name) for name in node.inputs[:3]]
    merged = len(parts[0].shape) == 3
    if merged:
        parts = [_heads(reader, node, part, heads[i]) for i, part in enumerate(parts)]
    shape = (*parts[0].shape[:3], parts[2].shape[3])
    mask = reader.operand(node.inputs[3]) if node.has(3) else None
    args = dict(zip(("query", "key", "value"), parts, strict=True)) | {
        "attn_mask": mask,
        "dropout_p": 0.0,
        "is_causal": bool(node.get("is_causal", 0)),
        "scale": node.get("scale"),
    }
    type_ = Type(shape, parts[0].type.dtype)
    attended = reader.add("scaled_dot_product_attention", args, node, type_)
    if not merged:
        return attended
    turned = Type((shape[0], shape[2], shape[1], shape[3]), type_.dtype)
    attended = reader.add("permute", {"self": attended, "dims": [0, 2, 1, 3]}, node, turned)
    return result(reader, node, "reshape", {"self": attended})


def _heads(reader: Reader, node: OnnxNode, x: Node, heads: int) -> Node:
    n, steps, width = x.shape
    cut = Type((n, steps, heads, width // heads), x.type.dtype)
    x = reader.add("reshape", {"self": x}, node, cut)
    turned = Type((n, heads, steps, width // heads), x.type.dtype)
    return reader.add("permute", {"self": x, "dims": [0, 2, 1, 3]}, node, turned)


# Of a cell: its gates as ONNX orders them, in PyTorch's order.
_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}


@converts("LSTM", "GRU")
def recurrent(reader: Reader, node: OnnxNode) -> tuple[Node, ...]:
    """One layer, in one or both directions: y (steps, directions, n, hidden), and last states."""
    if node.get("layout", 0) or node.get("activations") or node.get("clip"):
        raise Unreadable("it has another layout or other activations than PyTorch's")
    if node.op == "GRU" and not node.get("linear_before_reset", 0):
        raise Unreadable("its reset gate comes before the product with the states")
    if node.has(4):
        raise Unreadable("its sequences have lengths of their own")
    states = [reader.array(node.inputs[i]) for i in (5, 6) if node.has(i)]
    if any(s.any() for s in states) or node.has(7):
        raise Unreadable("it begins with a state other than zeros, or has peepholes")
    if node.get("direction", "forward") == "reverse":
        raise Unreadable("it runs backwards alone")
    order, hidden = _GATES[node.op], node.get("hidden_size")
    kernels, recurrents = reader.array(node.inputs[1]), reader.array(node.inputs[2])
    directions, gates = kernels.shape[0], len(order)
    bias = (
        reader.array(node.inputs[3])
        if node.has(3)
        else np.zeros((directions, 2 * gates * hidden), np.float32)
    )

    def ordered(values: Any) -> Any:
        cut = values.reshape(gates, hidden, *values.shape[1:])
        return np.ascontiguousarray(cut[list(order)].reshape(values.shape))

    params = []
    for d in range(directions):
        halves = bias[d].reshape(2, -1)
        for i, values in enumerate((kernels[d], recurrents[d], halves[0], halves[1])):
            name = f"{node.inputs[(1, 2, 3, 3)[i]] or node.path}.{d}.{i}"
            params.append(reader.weight(name, ordered(values)))
    x = reader.operand(node.inputs[0])
    steps, n, _ = x.shape
    zeros = [reader.constant(np.zeros(1, np.float32))] * (2 if node.op == "LSTM" else 1)
    args = {
        "input": x,
        "hx": zeros,
        "params": params,
        "has_biases": True,
        "num_layers": 1,
        "dropout": 0.0,
        "train": False,
        "bidirectional": directions == 2,
        "batch_first": False,
    }
    whole = Type((steps, n, directions * hidden), x.type.dtype)
    last = Type((directions, n, hidden), x.type.dtype)
    types = (whole, *([last] * len(zeros)))
    cell = reader.add(node.op.lower(), args, node, types)
    parts = [
        reader.add("getitem", {"self": cell, "index": i}, node, type_)
        for i, type_ in enumerate(types)
    ]
    cut = Type((steps, n, directions, hidden), x.type.dtype)
    y = reader.add("reshape", {"self": parts[0]}, node, cut)
    y = result(reader, node, "permute", {"self": y, "dims": [0, 2, 1, 3]})
    return (y, *parts[1:])
