"""What ONNX's element-wise operators and reductions are in the importers' internal form."""

from __future__ import annotations

from flexlegion.importers.onnx_conversions import Unreadable, converts
from flexlegion.importers.onnx_file import OnnxNode
from flexlegion.importers.onnx_reader import Reader, number, numbers, result
from flexlegion.importers.program import Node, Type

# Of the same name, but for capitals; of one input.
_UNARY = {
    "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Exp": "exp", "Log": "log",
    "Sqrt": "sqrt", "Neg": "neg", "Abs": "abs", "Sin": "sin", "Cos": "cos", "Erf": "erf",
    "Asin": "asin", "Acos": "acos", "Atan": "atan", "Asinh": "asinh", "Acosh": "acosh",
    "Atanh": "atanh", "Reciprocal": "reciprocal", "HardSwish": "hardswish", "Not": "logical_not",
}  # fmt: skip
# Functions of formulas that PyTorch has under other names, or not at all.
_FUNCTIONS = {
    "Mish": "mish(x0)", "Softsign": "softsign(x0)", "Sign": "sign(x0)", "Floor": "floor(x0)",
    "Ceil": "ceil(x0)", "Tan": "(sin(x0) / cos(x0))", "Sinh": "(0.5 * (exp(x0) - exp(-x0)))",
    "Cosh": "(0.5 * (exp(x0) + exp(-x0)))",
}  # fmt: skip
_BINARY = {
    "Mul": "mul", "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt",
    "GreaterOrEqual": "ge", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
}  # fmt: skip
_REDUCTIONS = {"ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "amax"}
# What these take the sum of, and what they make of it.
_OF_SUMS = {
    "ReduceL1": ("abs(x0)", "x0"),
    "ReduceSumSquare": ("square(x0)", "x0"),
    "ReduceLogSum": ("x0", "log(x0)"),
}
_POWERS = (2.0, 0.5, -0.5, -1.0, 3.0, 4.0)  # which passes make faster formulas of
# As ONNX's default attributes say them.
_SELU = (1.67326319217681884765625, 1.05070102214813232421875)


def formula(
    reader: Reader, node: OnnxNode, text: str, operands: list[Node], type_: Type | None = None
) -> Node:
    """An expression over x0, x1, ..., of the type of the node's output unless given."""
    args = {"formula": text, "operands": operands, "kind": node.op.lower()}
    return reader.add("expression", args, node, type_ or reader.type(node.outputs[0]))


@converts(*_UNARY)
def unary(reader: Reader, node: OnnxNode) -> Node:
    return result(reader, node, _UNARY[node.op], {"self": reader.operand(node.inputs[0])})


@converts(*_FUNCTIONS)
def function(reader: Reader, node: OnnxNode) -> Node:
    return formula(reader, node, _FUNCTIONS[node.op], [reader.operand(node.inputs[0])])


@converts(*_BINARY, inputs=2)
def binary(reader: Reader, node: OnnxNode) -> Node:
    a, b = map(reader.operand, node.inputs)
    return result(reader, node, _BINARY[node.op], {"self": a, "other": b})


@converts("Div", inputs=2)
def divide(reader: Reader, node: OnnxNode) -> Node:
    """Of whole numbers, what is behind the point is cut off."""
    a, b = map(reader.operand, node.inputs)
    if reader.type(node.outputs[0]).is_float:
        return result(reader, node, "div", {"self": a, "other": b})
    quotient = "(x0 / x1)" if a is not b else "(x0 / x0)"
    text = f"where(({quotient} < 0.0), (-floor(-{quotient})), floor({quotient}))"
    return formula(reader, node, text, [a, b] if a is not b else [a])


@converts("Add", "Sub", inputs=2)
def add(reader: Reader, node: OnnxNode) -> Node:
    a, b = map(reader.operand, node.inputs)
    return result(reader, node, node.op.lower(), {"self": a, "other": b, "alpha": 1})


@converts("Sum", "Max", "Min", "Mean", inputs=None)
def several(reader: Reader, node: OnnxNode) -> Node:
    op = {"Max": "maximum", "Min": "minimum"}.get(node.op, "add")
    first, *others = map(reader.operand, node.inputs)
    for other in others:
        first = result(reader, node, op, {"self": first, "other": other, "alpha": 1})
    if node.op == "Mean" and others:
        first = result(reader, node, "mul", {"self": first, "other": 1 / len(node.inputs)})
    return first


@converts("Pow", inputs=2)
def power(reader: Reader, node: OnnxNode) -> Node:
    base, exponent = map(reader.operand, node.inputs)
    single = reader.is_known(node.inputs[1]) and reader.array(node.inputs[1]).size == 1
    value = float(reader.array(node.inputs[1]).reshape(-1)[0]) if single else None
    if value in _POWERS and exponent.op == "constant":
        return result(reader, node, "pow", {"self": base, "exponent": exponent})
    if not base.type.is_float and (value is None or value < 0):
        raise Unreadable("it takes powers of whole numbers that may be no whole numbers")
    if base is exponent:
        return formula(reader, node, "(x0 ** x0)", [base])
    if value is not None and exponent.op == "constant":
        return formula(reader, node, f"(x0 ** {value!r})", [base])
    return formula(reader, node, "(x0 ** x1)", [base, exponent])


@converts("Where", inputs=3)
def where(reader: Reader, node: OnnxNode) -> Node:
    condition, a, b = node.inputs
    args = {
        name: reader.operand(n)
        for name, n in zip(("condition", "self", "other"), (condition, a, b), strict=True)
    }
    return result(reader, node, "where", args)


@converts("IsNaN")
def is_nan(reader: Reader, node: OnnxNode) -> Node:
    x = reader.operand(node.inputs[0])
    return result(reader, node, "ne", {"self": x, "other": x})


@converts("Gelu", attributes="approximate")
def gelu(reader: Reader, node: OnnxNode) -> Node:
    approximate = node.get("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise Unreadable(f"it is approximated by '{approximate}'")
    x = reader.operand(node.inputs[0])
    return result(reader, node, "gelu", {"self": x, "approximate": approximate})


@converts("HardSigmoid", attributes="alpha beta")
def hard_sigmoid(reader: Reader, node: OnnxNode) -> Node:
    """PyTorch's has a slope of 1/6; any other is a clamped line."""
    x = reader.operand(node.inputs[0])
    slope, middle = node.get("alpha", 0.2), node.get("beta", 0.5)
    if abs(slope - 1 / 6) < 1e-6 and middle == 0.5:
        return result(reader, node, "hardsigmoid", {"self": x})
    line = result(reader, node, "mul", {"self": x, "other": slope})
    line = result(reader, node, "add", {"self": line, "other": middle, "alpha": 1})
    return result(reader, node, "hardtanh", {"self": line, "min_val": 0.0, "max_val": 1.0})


@converts("Clip", inputs=3)
def clip(reader: Reader, node: OnnxNode) -> Node:
    """PyTorch writes its relu6, whose slope at both bounds is 0, as this one, from 0 to 6."""
    x, low, high = reader.operand(node.inputs[0]), number(reader, node, 1), number(reader, node, 2)
    if (low, high) == (0, 6):
        return result(reader, node, "hardtanh", {"self": x, "min_val": low, "max_val": high})
    return result(reader, node, "clamp", {"self": x, "min": low, "max": high})


@converts("LeakyRelu", attributes="alpha")
def leaky_relu(reader: Reader, node: OnnxNode) -> Node:
    args = {"self": reader.operand(node.inputs[0]), "negative_slope": node.get("alpha", 0.01)}
    return result(reader, node, "leaky_relu", args)


@converts("Elu", attributes="alpha")
def elu(reader: Reader, node: OnnxNode) -> Node:
    args = {"self": reader.operand(node.inputs[0]), "alpha": node.get("alpha", 1.0)}
    return result(reader, node, "elu", args | {"scale": 1, "input_scale": 1})


@converts("Selu", attributes="alpha gamma")
def selu(reader: Reader, node: OnnxNode) -> Node:
    x = reader.operand(node.inputs[0])
    alpha, gamma = node.get("alpha", _SELU[0]), node.get("gamma", _SELU[1])
    if (alpha, gamma) == _SELU:
        return result(reader, node, "selu", {"self": x})
    return result(
        reader, node, "elu", {"self": x, "alpha": alpha, "scale": gamma, "input_scale": 1}
    )


@converts("Celu", "ThresholdedRelu", "Swish", attributes="alpha")
def shaped(reader: Reader, node: OnnxNode) -> Node:
    alpha = float(node.get("alpha", 1.0))
    if node.op == "Celu" and not alpha:
        raise Unreadable("its alpha is 0")
    text = {
        "Celu": f"where((x0 > 0.0), x0, ({alpha!r} * expm1(minimum(x0, 0.0) / {alpha!r})))",
        "ThresholdedRelu": f"where((x0 > {alpha!r}), x0, 0.0)",
        "Swish": f"(x0 * sigmoid({alpha!r} * x0))",
    }[node.op]
    return formula(reader, node, text, [reader.operand(node.inputs[0])])


@converts("Shrink", attributes="bias lambd")
def shrink(reader: Reader, node: OnnxNode) -> Node:
    bias, bound = float(node.get("bias", 0.0)), float(node.get("lambd", 0.5))
    high = f"where((x0 > {bound!r}), (x0 - {bias!r}), 0.0)"
    text = f"where((x0 < {-bound!r}), (x0 + {bias!r}), {high})"
    return formula(reader, node, text, [reader.operand(node.inputs[0])])


@converts("Softplus")
def softplus(reader: Reader, node: OnnxNode) -> Node:
    return result(reader, node, "softplus", {"self": reader.operand(node.inputs[0]), "beta": 1})


@converts("PRelu", inputs=2)
def prelu(reader: Reader, node: OnnxNode) -> Node:
    """PyTorch has a slope for all, or for each channel; ONNX's broadcast in any way."""
    x = reader.operand(node.inputs[0])
    known = reader.is_known(node.inputs[1])
    slope = reader.parameter(node.inputs[1]) if known else reader.operand(node.inputs[1])
    rank = len(x.shape)
    lead = rank - len(slope.shape)
    long = [lead + d for d, extent in enumerate(slope.shape) if extent > 1]
    if known and (not long or (long == [1] and rank > 1)):
        count = max(slope.shape, default=1)
        view = Type((count,), slope.type.dtype)
        slope = reader.add("reshape", {"self": slope, "shape": [count]}, node, view)
        return result(reader, node, "prelu", {"self": x, "weight": slope})
    return formula(reader, node, "where((x0 > 0.0), x0, (x1 * x0))", [x, slope])


@converts("Cast", attributes="to saturate round_mode")
def cast(reader: Reader, node: OnnxNode) -> Node:
    """What `saturate` and `round_mode` say concerns types that are refused."""
    return result(reader, node, "to", {"self": reader.operand(node.inputs[0])})


@converts("Identity")
def identity(reader: Reader, node: OnnxNode) -> Node:
    return reader.operand(node.inputs[0])


@converts("CastLike", inputs=2, attributes="saturate round_mode")
def cast_like(reader: Reader, node: OnnxNode) -> Node:
    return cast(reader, node)


@converts("Dropout", inputs=3, attributes="seed")
def dropout(reader: Reader, node: OnnxNode) -> Node:
    trains = node.has(2) and bool(reader.array(node.inputs[2]))
    rate = number(reader, node, 1)
    args = {"input": reader.operand(node.inputs[0]), "p": 0.5 if rate is None else rate}
    return result(reader, node, "dropout", args | {"train": trains})


@converts("Softmax", "LogSoftmax", attributes="axis")
def softmax(reader: Reader, node: OnnxNode) -> Node:
    args = {"self": reader.operand(node.inputs[0]), "dim": node.get("axis", -1)}
    return result(reader, node, "softmax" if node.op == "Softmax" else "log_softmax", args)


def _dims(reader: Reader, node: OnnxNode) -> list[int] | None:
    """The dimensions that a reduction is over; None: it is over none."""
    axes = numbers(reader, node, 1) if node.has(1) else node.get("axes")
    if axes:
        return list(axes)
    if node.get("noop_with_empty_axes", 0):
        return None
    return list(range(len(reader.shape(node.inputs[0]))))


_REDUCES = "axes keepdims noop_with_empty_axes"


@converts(*_REDUCTIONS, inputs=2, attributes=_REDUCES)
def reduce(reader: Reader, node: OnnxNode) -> Node:
    x, dims = reader.operand(node.inputs[0]), _dims(reader, node)
    if dims is None:
        return x
    args = {"self": x, "dim": dims, "keepdim": bool(node.get("keepdims", 1))}
    return result(reader, node, _REDUCTIONS[node.op], args)


@converts("ReduceMin", "ReduceLogSumExp", *_OF_SUMS, inputs=2, attributes=_REDUCES)
def reduce_made(reader: Reader, node: OnnxNode) -> Node:
    """Reductions that are made of sums and maxima."""
    x, dims = reader.operand(node.inputs[0]), _dims(reader, node)
    if dims is None:
        raise Unreadable("it reduces no dimension")
    args = {"dim": dims, "keepdim": bool(node.get("keepdims", 1))}
    if node.op == "ReduceMin":
        turned = formula(reader, node, "(-x0)", [x], x.type)
        most = result(reader, node, "amax", {"self": turned} | args)
        return formula(reader, node, "(-x0)", [most])
    if node.op == "ReduceLogSumExp":  # by the largest, so that no power is infinite
        rank = len(x.shape)
        kept = tuple(1 if d in [i % rank for i in dims] else e for d, e in enumerate(x.shape))
        largest = Type(kept, x.type.dtype)
        most = reader.add("amax", {"self": x, "dim": dims, "keepdim": True}, node, largest)
        powers = formula(reader, node, "exp(x0 - x1)", [x, most], x.type)
        total = result(reader, node, "sum", {"self": powers} | args)
        most = result(reader, node, "reshape", {"self": most})
        return formula(reader, node, "(log(x0) + x1)", [total, most])
    before, after = _OF_SUMS[node.op]
    if before != "x0":
        x = formula(reader, node, before, [x], x.type)
    total = result(reader, node, "sum", {"self": x} | args)
    return total if after == "x0" else formula(reader, node, after, [total])


@converts("CumSum", inputs=2, attributes="exclusive reverse")
def cumulated(reader: Reader, node: OnnxNode) -> Node:
    args = {"self": reader.operand(node.inputs[0]), "dim": numbers(reader, node, 1)[0]}
    ways = {name: bool(node.get(name, 0)) for name in ("exclusive", "reverse")}
    return result(reader, node, "cumsum", args | ways)


@converts("ReduceL2", inputs=2, attributes=_REDUCES)
def length(reader: Reader, node: OnnxNode) -> Node:
    x, dims = reader.operand(node.inputs[0]), _dims(reader, node)
    if dims is None:
        raise Unreadable("it reduces no dimension")
    args = {"self": x, "ord": 2, "dim": dims, "keepdim": bool(node.get("keepdims", 1))}
    return result(reader, node, "linalg_vector_norm", args)


@converts("LpNormalization", attributes="axis p")
def normalize(reader: Reader, node: OnnxNode) -> Node:
    x = reader.operand(node.inputs[0])
    if node.get("p", 2) != 2:
        raise Unreadable("it normalises by another length than the root of the sum of squares")
    axis = node.get("axis", -1) % len(x.shape)
    type_ = Type((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.type.dtype)
    args = {"self": x, "ord": 2, "dim": [axis], "keepdim": True}
    root = reader.add("linalg_vector_norm", args, node, type_)
    bound = reader.add("clamp_min", {"self": root, "min": 1e-12}, node, type_)
    return result(reader, node, "div", {"self": x, "other": bound})
