"""What ONNX's layers are in the importers' internal form: products, windows, norms, sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flexlegion.importers.onnx_conversions import Unreadable, converts
from flexlegion.importers.onnx_file import OnnxNode
from flexlegion.importers.onnx_reader import Reader, result
from flexlegion.importers.program import Node, Type, constant_of


@converts("Gemm", inputs=3, attributes="transA transB alpha beta")
def gemm(reader: Reader, node: OnnxNode) -> Node:
    """alpha A B + beta C: a linear layer, unless C is no vector, or is scaled."""
    if node.get("transA", 0):
        raise Unreadable("it transposes its first factor")
    alpha, beta = float(node.get("alpha", 1.0)), float(node.get("beta", 1.0))
    x, weight = reader.operand(node.inputs[0]), reader.parameter(node.inputs[1])
    args: dict[str, Any] = {"self": x, "other": weight}
    if node.has(2):
        vector = reader.shape(node.inputs[2]) == reader.shape(node.outputs[0])[1:]
        plain = vector and reader.is_known(node.inputs[2])
    if (alpha, beta) != (1, 1) or (node.has(2) and not plain):
        if node.get("transB", 0):
            args = {"input": x, "weight": weight, "bias": None}
        product = result(reader, node, "linear" if "input" in args else "matmul", args)
        if alpha != 1:
            product = result(reader, node, "mul", {"self": product, "other": alpha})
        if not node.has(2):
            return product
        other = reader.operand(node.inputs[2])
        return result(reader, node, "add", {"self": product, "other": other, "alpha": beta})
    bias = reader.bias(node, 2)
    if node.get("transB", 0):
        return result(reader, node, "linear", {"input": x, "weight": weight, "bias": bias})
    if bias is None:
        return result(reader, node, "matmul", args)
    args = {"self": bias, "mat1": x, "mat2": weight, "alpha": 1, "beta": 1}
    return result(reader, node, "addmm", args)


@converts("MatMul", inputs=2)
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


_WINDOWS = "auto_pad dilations kernel_shape pads strides"


@converts("Conv", inputs=3, attributes=f"{_WINDOWS} group")
def convolution(reader: Reader, node: OnnxNode) -> Node:
    weight = reader.parameter(node.inputs[1])
    dims = len(weight.shape) - 2
    if list(node.get("kernel_shape", weight.shape[2:])) != list(weight.shape[2:]):
        raise Unreadable("its kernel_shape is not that of its weight")
    window = _window(reader, node, weight.shape[2:])
    x = _padded(reader, node, reader.operand(node.inputs[0]), window)
    bias = reader.bias(node, 2)
    args = {"input": x, "weight": weight, "bias": bias, "groups": node.get("group", 1)}
    return result(reader, node, f"conv{dims}d", args | window)


@converts("ConvTranspose", inputs=3, attributes=f"{_WINDOWS} group output_padding output_shape")
def transposed(reader: Reader, node: OnnxNode) -> Node:
    weight = reader.parameter(node.inputs[1])
    window = _window(reader, node, weight.shape[2:])
    pairs = window.pop("pairs")
    dims = len(pairs)
    if dims > 2 or node.get("auto_pad", "NOTSET") != "NOTSET" or node.get("output_shape"):
        raise Unreadable("it has three dimensions, or its padding follows from its output")
    extra = node.get("output_padding", [0] * dims)
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
    return result(reader, node, f"conv_transpose{dims}d", args | window)


@converts(
    "MaxPool", "AveragePool", attributes=f"{_WINDOWS} ceil_mode count_include_pad storage_order"
)
def pool(reader: Reader, node: OnnxNode) -> Node:
    """`storage_order` is of the second output, which is not followed."""
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


@converts("GlobalAveragePool", "GlobalMaxPool")
def global_pool(reader: Reader, node: OnnxNode) -> Node:
    x = reader.operand(node.inputs[0])
    dims = list(range(2, len(x.shape)))
    op = "mean" if node.op == "GlobalAveragePool" else "amax"
    return result(reader, node, op, {"self": x, "dim": dims, "keepdim": True})


@converts("BatchNormalization", inputs=5, attributes="epsilon momentum training_mode")
def batch_norm(reader: Reader, node: OnnxNode) -> Node:
    """Running averages keep ONNX's `momentum` of themselves.

    Whether they change is the user's to say, not the file's (`training_mode`).
    """
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


@converts("LayerNormalization", "RMSNormalization", inputs=3, attributes="axis epsilon stash_type")
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


@converts(
    "GroupNormalization",
    "InstanceNormalization",
    inputs=3,
    attributes="epsilon num_groups stash_type",
)
def group_norm(reader: Reader, node: OnnxNode) -> Node:
    """With a scale and a bias for each channel, which opset 21 brought."""
    x = reader.operand(node.inputs[0])
    reader.types.setdefault(node.outputs[0], x.type)  # ONNX does not infer it
    channels = x.shape[1]
    groups = node.get("num_groups", channels)
    if node.op == "GroupNormalization" and groups != channels and reader.file.opset < 21:
        raise Unreadable("it has a scale for each group; one for each channel came with opset 21")
    args = {
        "input": x,
        "num_groups": groups,
        "weight": reader.parameter(node.inputs[1]),
        "bias": reader.parameter(node.inputs[2]),
        "eps": node.get("epsilon", 1e-5),
    }
    return result(reader, node, "group_norm", args)


@converts(
    "Attention",
    inputs=4,
    attributes="is_causal kv_num_heads q_num_heads scale softcap softmax_precision "
    "qk_matmul_output_mode",
)
def attention(reader: Reader, node: OnnxNode) -> Node:
    """Opset 23's; queries, keys and values of four dimensions, or with their heads merged."""
    if node.get("softcap", 0.0):
        raise Unreadable("it caps its scores")
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
_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}


@converts(
    "LSTM",
    "GRU",
    inputs=8,
    attributes="activations clip direction hidden_size input_forget layout linear_before_reset",
)
def recurrent(reader: Reader, node: OnnxNode) -> tuple[Node, ...]:
    """One layer, in one or both directions: y (steps, directions, n, hidden), and last states."""
    own = node.get("activations") or _ACTIVATIONS[node.op]
    alike = own in (_ACTIVATIONS[node.op], _ACTIVATIONS[node.op] * 2)
    if node.get("layout", 0) or not alike or node.get("clip") is not None:
        raise Unreadable("it has another layout or other activations than PyTorch's")
    if node.get("input_forget", 0):
        raise Unreadable("it couples its gates (input_forget)")
    if node.op == "GRU" and not node.get("linear_before_reset", 0):
        raise Unreadable("its reset gate comes before the product with the states")
    if node.has(4):
        raise Unreadable("its sequences have lengths of their own")
    if node.has(7):
        raise Unreadable("it has peepholes")
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
            given = node.inputs[(1, 2, 3, 3)[i]] if node.has((1, 2, 3, 3)[i]) else node.path
            name = f"{given}.{d}.{i}"
            params.append(reader.weight(name, ordered(values)))
    x = reader.operand(node.inputs[0])
    steps, n, _ = x.shape
    states = []
    for i in (5, 6) if node.op == "LSTM" else (5,):
        zeros = reader.constant(np.zeros(1, np.float32))
        states.append(reader.operand(node.inputs[i]) if node.has(i) else zeros)
        its = constant_of(states[-1])
        if its is not None and its.any():
            raise Unreadable("it begins with a constant state other than zeros")
    if any(s.op != "constant" for s in states) and len(states) == 2:
        shape, shape_of_one = (directions, n, hidden), (directions, 1, hidden)
        states = [
            reader.constant(np.zeros(shape_of_one, np.float32), shape=shape)
            if s.op == "constant"
            else s
            for s in states
        ]
    args = {
        "input": x,
        "hx": states,
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
    types = (whole, *([last] * len(states)))
    cell = reader.add(node.op.lower(), args, node, types)
    parts = [
        reader.add("getitem", {"self": cell, "index": i}, node, type_)
        for i, type_ in enumerate(types)
    ]
    cut = Type((steps, n, directions, hidden), x.type.dtype)
    y = reader.add("reshape", {"self": parts[0]}, node, cut)
    y = result(reader, node, "permute", {"self": y, "dims": [0, 2, 1, 3]})
    return (y, *parts[1:])
