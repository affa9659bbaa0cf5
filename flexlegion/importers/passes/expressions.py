"""Element-wise operations become formulas; chains of single readers become one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from flexlegion.base.errors import UserError
from flexlegion.importers.passes.matching import only
from flexlegion.importers.program import Node, Program, at, constant_of
from flexlegion.ops.formula import program_of

MAX_OPERANDS = 8
MAX_LENGTH = 600  # of a formula

_UNARY = {
    "relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "silu": "silu", "hardswish": "hardswish",
    "hardsigmoid": "hardsigmoid", "exp": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "square": "square", "neg": "neg", "abs": "abs", "sin": "sin", "cos": "cos", "erf": "erf",
    "reciprocal": "reciprocal", "relu6": "relu6", "log1p": "log1p", "expm1": "expm1",
    "detach": "detach", "mish": "mish", "log_sigmoid": "log_sigmoid", "sign": "sign",
    "floor": "floor", "ceil": "ceil", "sgn": "sign", "special_expit": "sigmoid", "atan": "atan",
    "asin": "asin", "acos": "acos", "special_erf": "erf", "special_expm1": "expm1",
    "special_log1p": "log1p",
}  # fmt: skip
# Functions that PyTorch has under a second name.
_ALIASES = {
    f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")
}
# Functions that are formulas of those; where one has branches, none divides by zero in the other.
_FORMULAS = {
    "tan": "(sin(a) / cos(a))", "sinh": "(0.5 * (expm1(a) - expm1(-a)))",
    "cosh": "(0.5 * (exp(a) + exp(-a)))", "erfc": "(1.0 - erf(a))",
    "asinh": "where((a < 0.0), -log1p(-a + a * a / (1.0 + sqrt(1.0 + a * a))), "
    "log1p(a + a * a / (1.0 + sqrt(1.0 + a * a))))",
    "atanh": "(0.5 * (log1p(a) - log1p(-a)))", "acosh": "log(a + sqrt(a * a - 1.0))",
    "log2": "(log(a) * 1.4426950408889634)", "log10": "(log(a) * 0.4342944819032518)",
    "exp2": "exp(a * 0.6931471805599453)", "special_exp2": "exp(a * 0.6931471805599453)",
    "rad2deg": "(a * 57.29577951308232)", "deg2rad": "(a * 0.017453292519943295)",
    "trunc": "where((a < 0.0), ceil(a), floor(a))", "fix": "where((a < 0.0), ceil(a), floor(a))",
    "frac": "(a - where((a < 0.0), ceil(a), floor(a)))", "positive": "a",
    "sinc": "where((a == 0.0), 1.0, sin(3.141592653589793 * a) / "
    "(3.141592653589793 * where((a == 0.0), 1.0, a)))",
}  # fmt: skip
_BINARY = {
    "maximum": "maximum(a, b)", "minimum": "minimum(a, b)", "mul": "(a * b)", "div": "(a / b)",
    "eq": "(a == b)", "ne": "(a != b)", "lt": "(a < b)", "le": "(a <= b)", "gt": "(a > b)",
    "ge": "(a >= b)", "hypot": "sqrt(a * a + b * b)",
    "logaddexp": "(maximum(a, b) + log1p(exp(-abs(a - b))))",
    "logaddexp2": "(maximum(a, b) + 1.4426950408889634 * "
    "log1p(exp(-0.6931471805599453 * abs(a - b))))",
    "xlogy": "where(((a == 0.0) * (b <= 0.0)), 0.0, "
    "(a * log(where(((a == 0.0) * (b <= 0.0)), 1.0, b))))",
}  # fmt: skip
# An angle of up to 45 degrees by the smaller over the larger, and where it begins.
_SMALLER = "(abs(a) <= abs(b))"
_BINARY["atan2"] = (
    f"(where({_SMALLER}, 1.0, -1.0) * atan(where({_SMALLER}, a, b) / "
    f"where({_SMALLER}, where((b == 0.0), 1.0, b), a)) + "
    f"where({_SMALLER}, where((b < 0.0), where((a < 0.0), -3.141592653589793, 3.141592653589793), "
    "0.0), 1.5707963267948966 * sign(a)))"
)
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_LOGIC = {"and": "(a * b)", "or": "maximum(a, b)", "xor": "(a != b)"}

Formula = tuple[str, dict[str, Any]]  # over a, b, c; and what these are


def as_expressions(program: Program) -> None:
    """Turn every element-wise operation into a node "expression"."""
    for node in program.nodes:
        made = _formula(node)
        if made is None:
            continue
        text, names = made
        operands: list[Node] = []
        for name, value in names.items():
            number = constant_of(value)
            if number is not None and number.size == 1:
                item = number.reshape(-1)[0].item()
                _check_exact(node, item)
                replacement = _number(item)
            else:
                if value not in operands:
                    operands.append(value)
                replacement = f"x{operands.index(value)}"
            text = re.sub(rf"\b{name}\b", replacement, text)
        if operands:
            args = {"formula": text, "operands": operands, "kind": node.op.strip("_")}
            node.op, node.args = "expression", args


def _check_exact(node: Node, number: Any) -> None:
    """Refuse whole numbers that are rounded here: formulas compute in single precision; and NaN."""
    if isinstance(number, float) and math.isnan(number):
        raise UserError(
            f"'{node.op}'{at(node.path)} computes with a constant that is no number (NaN)"
        )
    whole = isinstance(number, int) and float(np.float32(number)) != number
    if whole and any(not source.type.is_float for source in node.inputs):
        raise UserError(
            f"'{node.op}'{at(node.path)} computes with the whole number {number}, which single "
            "precision does not hold exactly"
        )


def fuse_expressions(program: Program) -> None:
    """Compute an expression that a single other one reads within that one."""
    users = program.users()
    for node in program.nodes:
        if node.op != "expression":
            continue
        changed = True
        while changed:
            changed = False
            for operand in node["operands"]:
                if operand.op == "expression" and only(users[operand]) is node:
                    changed = _substitute(node, operand)
                    if changed:
                        break


def _substitute(node: Node, operand: Node) -> bool:
    """Put an operand's formula in its place; False if that becomes too long."""
    outer, inner = list(node["operands"]), list(operand["operands"])
    place = outer.index(operand)
    operands = [o for o in outer if o is not operand]
    operands += [o for o in inner if o not in operands]
    if len(operands) > MAX_OPERANDS or len(node["formula"]) + len(operand["formula"]) > MAX_LENGTH:
        return False
    if len(re.findall(rf"\bx{place}\b", node["formula"])) != 1:
        return False
    text = _renumbered(operand["formula"], [operands.index(o) for o in inner])
    numbers = [operands.index(o) if o is not operand else -1 for o in outer]
    formula = _renumbered(node["formula"], numbers).replace("x-1", text)
    try:
        program_of(formula)
    except UserError:  # it takes more steps than an operator has
        return False
    node.args |= {"formula": formula, "operands": operands}
    return True


def _renumbered(formula: str, numbers: list[int]) -> str:
    return re.sub(r"\bx(\d+)\b", lambda match: f"x{numbers[int(match[1])]}", formula)


def _number(value: float) -> str:
    if isinstance(value, bool):
        return str(float(value))
    if math.isinf(value):
        return "1e999" if value > 0 else "(-1e999)"  # how Python writes infinity as a literal
    return repr(float(value)) if value >= 0 else f"({float(value)!r})"


def _infinite(value: Any) -> str | None:
    """An infinite constant as formulas write it; `_number` takes the largest number for it."""
    number = constant_of(value)
    if number is None or number.size != 1 or not np.isinf(number).all():
        return None
    return "1e999" if number.reshape(-1)[0] > 0 else "(-1e999)"


def _formula(node: Node) -> Formula | None:
    """A node as a formula, if it is element-wise and its values are numbers that can be."""
    op = node.op.strip("_").removeprefix("logical_").removeprefix("bitwise_")
    if not isinstance(node.args, dict) or node.type is None or isinstance(node.type, tuple):
        return None
    op = _ALIASES.get(op, op)
    own = _SPECIAL.get(op)
    if own is not None:
        return own(node)
    a = node.get("self")
    if op in _UNARY:
        return f"{_UNARY[op]}(a)", {"a": a}
    if op in _FORMULAS and node.type.is_float:
        return _FORMULAS[op], {"a": a}
    if op in _BINARY:
        if op == "div" and node.get("rounding_mode") is not None:
            return None
        if op in _COMPARED and (infinite := _infinite(node["other"])) is not None:
            return _BINARY[op].replace("b", infinite), {"a": a}
        return _BINARY[op], {"a": a, "b": node["other"]}
    if op in _LOGIC and node.type.dtype == "bool":
        return _LOGIC[op], {"a": a, "b": node["other"]}
    if op == "not" and node.type.dtype == "bool":
        return "(1.0 - a)", {"a": a}
    return None


def _sum(sign: str) -> Callable[[Node], Formula]:
    def formula(node: Node) -> Formula:
        if node.type.dtype == "bool":  # a sum of truths is true or false
            return "maximum(a, b)", {"a": node["self"], "b": node["other"]}
        alpha = node.get("alpha", 1)
        second = "b" if alpha == 1 else f"{_number(alpha)} * b"
        return f"(a {sign} {second})", {"a": node["self"], "b": node["other"]}

    return formula


def _pow(node: Node) -> Formula | None:
    if not node.type.is_float:
        return None
    exponent = constant_of(node["exponent"])
    if exponent is None or exponent.size != 1 or not isinstance(node["self"], Node):
        return "(a ** b)", {"a": node["self"], "b": node["exponent"]}
    value = float(exponent.reshape(-1)[0])
    text = {2.0: "square(a)", 0.5: "sqrt(a)", -0.5: "rsqrt(a)", -1.0: "reciprocal(a)"}.get(value)
    if text is None and value in (3.0, 4.0):
        text = {3.0: "(a * square(a))", 4.0: "square(square(a))"}[value]
    return text or f"(a ** {_number(value)})", {"a": node["self"]}


def _where(node: Node) -> Formula:
    return "where(a, b, c)", {"a": node["condition"], "b": node["self"], "c": node["other"]}


def _masked_fill(node: Node) -> Formula:
    return "where(a, b, c)", {"a": node["mask"], "b": node["value"], "c": node["self"]}


def _gelu(node: Node) -> Formula:
    name = "gelu_tanh" if node["approximate"] == "tanh" else "gelu"
    return f"{name}(a)", {"a": node["self"]}


def _clamp(node: Node) -> Formula:
    """A single bound is not `minimum` or `maximum`, either: the slope at the bound is 1."""
    low, high = node.get("min"), node.get("max")
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    return "clamp(a, b, c)", {"a": node["self"], "b": low, "c": high}


def _hardtanh(node: Node) -> Formula:
    low, high = (_number(float(node[name])) for name in ("min_val", "max_val"))
    return f"hardtanh(a, {low}, {high})", {"a": node["self"]}


def _leaky_relu(node: Node) -> Formula:
    slope = _number(float(node["negative_slope"]))
    return f"where((a > 0.0), a, ({slope} * a))", {"a": node["self"]}


def _elu(node: Node) -> Formula | None:
    scale, alpha = float(node["scale"]), float(node["alpha"])
    if node["input_scale"] != 1:
        return None
    if (scale, alpha) == (1, 1):
        return "elu(a)", {"a": node["self"]}
    factor, slope = _number(scale), _number(scale * alpha)
    text = f"where((a > 0.0), ({factor} * a), ({slope} * expm1(where((a > 0.0), 0.0, a))))"
    return text, {"a": node["self"]}


def _length(node: Node) -> Formula:
    """The root of a sum of squares: at 0 its slope is 0, as PyTorch's norms have it."""
    text = "where((a == 0.0), 0.0, sqrt(where((a == 0.0), 1.0, a)))"
    return text, {"a": node["self"]}


def _selu(node: Node) -> Formula:
    return "selu(a)", {"a": node["self"]}


def _softplus(node: Node) -> Formula | None:
    beta = float(node["beta"])
    text = "softplus(a)" if beta == 1 else f"(softplus({_number(beta)} * a) * {_number(1 / beta)})"
    return text, {"a": node["self"]}


def _celu(node: Node) -> Formula:
    alpha = float(node["alpha"])
    below = f"{_number(alpha)} * expm1(minimum(a, 0.0) * {_number(1 / alpha)})"
    return f"where((a > 0.0), a, ({below}))", {"a": node["self"]}


def _hardshrink(node: Node) -> Formula:
    return f"where((abs(a) <= {_number(float(node['lambd']))}), 0.0, a)", {"a": node["self"]}


def _softshrink(node: Node) -> Formula:
    bound = _number(float(node["lambd"]))
    return f"where((abs(a) <= {bound}), 0.0, (a - {bound} * sign(a)))", {"a": node["self"]}


def _round(node: Node) -> Formula | None:
    """To the nearest whole number; halves to the even one."""
    if node.get("decimals", 0):
        return None
    even = "(0.5 * floor(a) == floor(0.5 * floor(a)))"
    below = f"((a - floor(a) < 0.5) + (a - floor(a) == 0.5) * {even})"
    return f"where(({below} > 0.0), floor(a), (1.0 + floor(a)))", {"a": node["self"]}


def _remainder(toward: str) -> Callable[[Node], Formula | None]:
    """By a power of two, so that the quotient is exact."""

    def formula(node: Node) -> Formula | None:
        number = constant_of(node["other"])
        if number is None or number.size != 1 or not node.type.is_float:
            return None
        by = float(number.reshape(-1)[0])
        if not math.isfinite(by) or abs(math.frexp(by)[0]) != 0.5:
            return None
        quotient = f"(a * {_number(1 / by)})"
        whole = f"floor({quotient})"
        if toward == "zero":
            whole = f"where(({quotient} < 0.0), ceil({quotient}), {whole})"
        return f"(a - {_number(by)} * {whole})", {"a": node["self"]}

    return formula


def _rrelu(node: Node) -> Formula | None:
    """In evaluation mode, with the mean of the slopes that are drawn in training."""
    if node["training"]:
        return None
    slope = _number((float(node["lower"]) + float(node["upper"])) / 2)
    return f"where((a > 0.0), a, ({slope} * a))", {"a": node["self"]}


def _nan_to_num(node: Node) -> Formula:
    largest = float(np.finfo(np.float32).max)
    above, below = node.get("posinf"), node.get("neginf")
    high = _number(largest if above is None else float(above))
    low = _number(-largest if below is None else float(below))
    missing = _number(float(node.get("nan") or 0.0))
    text = f"where((a > {_number(largest)}), {high}, where((a < {_number(-largest)}), {low}, a))"
    return f"where((a != a), {missing}, {text})", {"a": node["self"]}


def _root(node: Node) -> Formula:
    """A root of a sum of powers, whose slope at 0 is 0, as PyTorch's norms have it."""
    text = f"where((a == 0.0), 0.0, (where((a == 0.0), 1.0, a) ** {_number(1 / node['power'])}))"
    return text, {"a": node["self"]}


def _threshold(node: Node) -> Formula:
    bound, value = (_number(float(node[name])) for name in ("threshold", "value"))
    return f"where((a <= {bound}), {value}, a)", {"a": node["self"]}


def _isnan(node: Node) -> Formula:
    return "(a != a)", {"a": node["self"]}


def _added(operator: str) -> Callable[[Node], Formula]:
    def formula(node: Node) -> Formula:
        names = {"a": node["self"], "b": node["tensor1"], "c": node["tensor2"]}
        return f"(a + {_number(float(node.get('value', 1)))} * b {operator} c)", names

    return formula


def _lerp(node: Node) -> Formula:
    return "(a + c * (b - a))", {"a": node["self"], "b": node["end"], "c": node["weight"]}


def _rsub(node: Node) -> Formula:
    alpha = _number(float(node.get("alpha", 1)))
    return f"(b - {alpha} * a)", {"a": node["self"], "b": node["other"]}


def _converted(node: Node) -> Formula | None:
    if node.type.dtype == "bool":
        return "(a != 0.0)", {"a": node["self"]}
    return ("a", {"a": node["self"]}) if node["self"].type.dtype == "bool" else None


def _l2_normalize(node: Node) -> Formula:
    bound = _number(node["epsilon"] ** 2)
    return f"(a * rsqrt(maximum(b, {bound})))", {"a": node["self"], "b": node["sum"]}


_SPECIAL: dict[str, Callable[[Node], Formula | None]] = {
    "add": _sum("+"), "sub": _sum("-"), "rsub": _rsub, "pow": _pow, "where": _where,
    "masked_fill": _masked_fill, "gelu": _gelu, "clamp": _clamp, "clip": _clamp,
    "clamp_min": _clamp, "clamp_max": _clamp, "selu": _selu, "l2_normalize": _l2_normalize,
    "hardtanh": _hardtanh, "leaky_relu": _leaky_relu, "elu": _elu, "softplus": _softplus,
    "celu": _celu, "hardshrink": _hardshrink, "softshrink": _softshrink, "isnan": _isnan,
    "threshold": _threshold, "addcmul": _added("*"), "addcdiv": _added("/"), "lerp": _lerp,
    "round": _round, "remainder": _remainder("below"), "fmod": _remainder("zero"),
    "rrelu": _rrelu, "nan_to_num": _nan_to_num, "root": _root,
    "length": _length, "to": _converted, "to_copy": _converted, "type_as": _converted,
}  # fmt: skip
