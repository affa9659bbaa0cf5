"""What ONNX's element-wise operators and reductions are in the importers' internal form."""

from __future__ import annotations

from flexlegion.importers.onnx_file import OnnxNode
from flexlegion.importers.onnx_reader import Reader, Unreadable, converts, number, numbers, result
from flexlegion.importers.program import Node, Type

# Of the same name, but for capitals; of one input.
_UNARY = {
    "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Exp": "exp", "Log": "log",
    "Sqrt": "sqrt", "Neg": "neg", "Abs": "abs", "Sin": "sin", "Cos": "cos", "Erf": "erf",
    "Reciprocal": "reciprocal", "HardSwish": "hardswish", "Not": "logical_not",
}  # fmt: skip
_BINARY = {
    "Mul": "mul", "Div": "div", "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt",
    "GreaterOrEqual": "ge", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
}  # fmt: skip
_REDUCTIONS = {"ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "amax"}


@converts(*_UNARY)
def unary(reader: Reader, node: OnnxNode) -> Node:
    return result(reader, node, _UNARY[node.op], {"self": reader.operand(node.inputs[0])})


@converts(*_BINARY)
def binary(reader: Reader, node: OnnxNode) -> Node:
    a, b = map(reader.operand, node.inputs)
    return result(reader, node, _BINARY[node.op], {"self": a, "other": b})


@converts("Add", "Sub")
def add(reader: Reader, node: OnnxNode) -> Node:
    a, b = map(reader.operand, node.inputs)
    return result(reader, node, node.op.lower(), {"self": a, "other": b, "alpha": 1})


@converts("Sum", "Max", "Min")
def several(reader: Reader, node: OnnxNode) -> Node:
    op = {"Sum": "add", "Max": "maximum", "Min": "minimum"}[node.op]
    first, *others = map(reader.operand, node.inputs)
    for other in others:
        first = result(reader, node, op, {"self": first, "other": other, "alpha": 1})
    return first


@converts("Pow")
def power(reader: Reader, node: OnnxNode) -> Node:
    base, exponent = map(reader.operand, node.inputs)
    return result(reader, node, "pow", {"self": base, "exponent": exponent})


@converts("Where")
def where(reader: Reader, node: OnnxNode) -> Node:
    """What replaces what is not a number is left out: it is of queries that attend to nothing."""
    condition, a, b = node.inputs
    maker = _maker(reader, condition)
    if maker is not None and maker.op == "IsNaN" and maker.inputs[0] == b:
        return reader.operand(b)
    args = {
        name: reader.operand(n)
        for name, n in zip(("condition", "self", "other"), (condition, a, b), strict=True)
    }
    return result(reader, node, "where", args)


@converts("IsNaN")
def is_nan(reader: Reader, node: OnnxNode) -> Node:
    x = reader.operand(node.inputs[0])
    return result(reader, node, "ne", {"self": x, "other": x})


@converts("Gelu")
def gelu(reader: Reader, node: OnnxNode) -> Node:
    x = reader.operand(node.inputs[0])
    return result(reader, node, "gelu", {"self": x, "approximate": node.get("approximate", "none")})


@converts("HardSigmoid")
def hard_sigmoid(reader: Reader, node: OnnxNode) -> Node:
    """PyTorch's has a slope of 1/6; any other is a clamped line."""
    x = reader.operand(node.inputs[0])
    slope, middle = node.get("alpha", 0.2), node.get("beta", 0.5)
    if abs(slope - 1 / 6) < 1e-6 and middle == 0.5:
        return result(reader, node, "hardsigmoid", {"self": x})
    line = result(reader, node, "mul", {"self": x, "other": slope})
    line = result(reader, node, "add", {"self": line, "other": middle, "alpha": 1})
    return result(reader, node, "clamp", {"self": line, "min": 0.0, "max": 1.0})


@converts("Clip")
def clip(reader: Reader, node: OnnxNode) -> Node:
    bounds = {"min": number(reader, node, 1), "max": number(reader, node, 2)}
    return result(reader, node, "clamp", {"self": reader.operand(node.inputs[0])} | bounds)


@converts("LeakyRelu")
def leaky_relu(reader: Reader, node: OnnxNode) -> Node:
    args = {"self": reader.operand(node.inputs[0]), "negative_slope": node.get("alpha", 0.01)}
    return result(reader, node, "leaky_relu", args)


@converts("Elu")
def elu(reader: Reader, node: OnnxNode) -> Node:
    args = {"self": reader.operand(node.inputs[0]), "alpha": node.get("alpha", 1.0)}
    return result(reader, node, "elu", args | {"scale": 1, "input_scale": 1})


@converts("Selu")
def selu(reader: Reader, node: OnnxNode) -> Node:
    return result(reader, node, "selu", {"self": reader.operand(node.inputs[0])})


@converts("Softplus")
def softplus(reader: Reader, node: OnnxNode) -> Node:
    return result(reader, node, "softplus", {"self": reader.operand(node.inputs[0]), "beta": 1})


@converts("PRelu")
def prelu(reader: Reader, node: OnnxNode) -> Node:
    """ONNX's slopes broadcast; those of channels have an extent of 1 behind them."""
    x, slope = reader.operand(node.inputs[0]), reader.parameter(node.inputs[1])
    if len(slope.shape) > 1:
        count = max(slope.shape)
        view = Type((count,), slope.type.dtype)
        slope = reader.add("reshape", {"self": slope, "shape": [count]}, node, view)
    return result(reader, node, "prelu", {"self": x, "weight": slope})


@converts("Cast")
def cast(reader: Reader, node: OnnxNode) -> Node:
    return result(reader, node, "to", {"self": reader.operand(node.inputs[0])})


@converts("Identity", "CastLike")
def identity(reader: Reader, node: OnnxNode) -> Node:
    return reader.operand(node.inputs[0])


@converts("Dropout")
def dropout(reader: Reader, node: OnnxNode) -> Node:
    trains = node.has(2) and bool(reader.array(node.inputs[2]))
    rate = number(reader, node, 1)
    args = {"input": reader.operand(node.inputs[0]), "p": 0.5 if rate is None else rate}
    return result(reader, node, "dropout", args | {"train": trains})


@converts("Softmax", "LogSoftmax")
def softmax(reader: Reader, node: OnnxNode) -> Node:
    args = {"self": reader.operand(node.inputs[0]), "dim": node.get("axis", -1)}
    return result(reader, node, "softmax" if node.op == "Softmax" else "log_softmax", args)


@converts(*_REDUCTIONS)
def reduce(reader: Reader, node: OnnxNode) -> Node:
    x = reader.operand(node.inputs[0])
    axes = numbers(reader, node, 1) if node.has(1) else node.get("axes")
    if not axes and node.get("noop_with_empty_axes", 0):
        return x
    dims = list(axes) if axes else list(range(len(x.shape)))
    args = {"self": x, "dim": dims, "keepdim": bool(node.get("keepdims", 1))}
    return result(reader, node, _REDUCTIONS[node.op], args)


@converts("ReduceL2", "LpNormalization")
def length(reader: Reader, node: OnnxNode) -> Node:
    x = reader.operand(node.inputs[0])
    if node.op == "ReduceL2":
        dims = numbers(reader, node, 1) if node.has(1) else node.get("axes")
        args = {"self": x, "ord": 2, "dim": list(dims), "keepdim": bool(node.get("keepdims", 1))}
        return result(reader, node, "linalg_vector_norm", args)
    if node.get("p", 2) != 2:
        raise Unreadable("it normalises by another length than the root of the sum of squares")
    axis = node.get("axis", -1) % len(x.shape)
    type_ = Type((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.type.dtype)
    args = {"self": x, "ord": 2, "dim": [axis], "keepdim": True}
    root = reader.add("linalg_vector_norm", args, node, type_)
    bound = reader.add("clamp_min", {"self": root, "min": 1e-12}, node, type_)
    return result(reader, node, "div", {"self": x, "other": bound})


def _maker(reader: Reader, name: str) -> OnnxNode | None:
    """The node that computes a value."""
    return next((n for n in reader.file.nodes if name in n.outputs), None)
