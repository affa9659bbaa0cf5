"""Formulas in text, as element-wise operators take them, and the programs that kernels run.

A formula is an expression over ``x0``, ``x1``, ... in Python's syntax: numbers, ``+ - * / **``,
comparisons (0 or 1), ``where(c, a, b)``, ``minimum``, ``maximum``, ``clamp(x, low, high)``,
``hardtanh(x, low, high)``, and the functions of one argument in `FUNCTIONS`.

Where a function has two branches, its slope is PyTorch's: `clamp` has slope 1 at its bounds, and
`hardtanh`, which has the same values, has slope 0. Of equal arguments, `minimum` and `maximum` give
half the gradient to each. NaN stays NaN.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flexlegion.base.errors import UserError

MAX_INPUTS, MAX_VALUES = 8, 64  # as in native/ops/expression.h

# Functions of one argument: by name, a formula over x; or None, where the kernels have an operation
# of that name. This table is the only place that knows them: layers and activations follow from it.
FUNCTIONS: dict[str, str | None] = {
    "relu": None,
    "sigmoid": None,
    "tanh": None,
    "gelu": "0.5 * x * (1 + erf(x * 0.7071067811865476))",
    "gelu_tanh": "0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))",
    "quick_gelu": "x * sigmoid(1.702 * x)",
    "silu": "x * sigmoid(x)",
    "mish": "x * tanh(softplus(x))",
    "hardswish": "x * hardtanh(x + 3, 0, 6) / 6",
    "hardsigmoid": "hardtanh(x + 3, 0, 6) / 6",
    "hardtanh": "hardtanh(x, -1, 1)",
    "relu6": "hardtanh(x, 0, 6)",
    "elu": "where(x > 0, x, expm1(where(x > 0, 0, x)))",
    "selu": "1.0507009873554805 * where(x > 0, x, 1.6732632423543772 * expm1(where(x > 0, 0, x)))",
    "leaky_relu": "where(x > 0, x, 0.01 * x)",
    "softplus": "maximum(x, 0) + log1p(exp(-abs(x)))",
    "log_sigmoid": "minimum(x, 0) - log1p(exp(-abs(x)))",
    "softsign": "x / (1 + abs(x))",
    "exp": None,
    "expm1": None,
    "log": None,
    "log1p": None,
    "sqrt": None,
    "rsqrt": None,
    "square": "x * x",
    "reciprocal": None,
    "neg": "-x",
    "abs": None,
    "sign": None,
    "floor": None,
    "ceil": "-floor(-x)",
    "sin": None,
    "cos": None,
    "asin": None,
    "acos": None,
    "atan": None,
    "erf": None,
    "detach": None,
}

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Pow: "power",
}
_FOLDED: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "power": lambda a, b: float(a**b),
}
# Which comparison, and whether the operands change places.
_COMPARED: dict[type[ast.cmpop], tuple[str, bool]] = {
    ast.Lt: ("less", False),
    ast.LtE: ("less_equal", False),
    ast.Gt: ("less", True),
    ast.GtE: ("less_equal", True),
    ast.Eq: ("equal", False),
}
# What the slope of an operation's result by an argument is computed from: arguments by position, y
# the result. Operations that are not here have no slope.
_SLOPES: dict[str, tuple[str, ...]] = {
    "add": ("", ""),
    "subtract": ("", ""),
    "multiply": ("1", "0"),
    "divide": ("1", "01"),
    "minimum": ("01", "01"),
    "maximum": ("01", "01"),
    "where": ("", "0", "0"),
    "clamp": ("012", "012", "012"),
    "hardtanh": ("012", "012", "012"),
    "power": ("01", "01"),
    "negate": ("",),
    "abs": ("0",),
    "reciprocal": ("y",),
    "sqrt": ("y",),
    "rsqrt": ("y",),
    "exp": ("y",),
    "expm1": ("y",),
    "log": ("0",),
    "log1p": ("0",),
    "sin": ("0",),
    "cos": ("0",),
    "asin": ("0",),
    "acos": ("0",),
    "atan": ("0",),
    "tanh": ("y",),
    "sigmoid": ("y",),
    "erf": ("0",),
    "relu": ("0",),
}
_NO_SLOPE = {("where", 0)}
_FLOPS = {"number": 0, "sigmoid": 3}  # others: 1


@dataclass(frozen=True)
class Instruction:
    """One operation of a program.

    Parameters
    ----------
    operation
        By its name in ``native/ops/expression.cc``.
    of
        Numbers of the values that it computes with.
    number
        Of the operation ``number``.
    """

    operation: str
    of: tuple[int, ...] = ()
    number: float = 0.0

    def __str__(self) -> str:
        words = (repr(self.number),) if self.operation == "number" else map(str, self.of)
        return " ".join((self.operation, *words))


@dataclass(frozen=True)
class Program:
    """A formula in single steps.

    Values are numbered: first the inputs, then what the instructions compute, in their order. The
    last is the result.
    """

    inputs: int
    instructions: tuple[Instruction, ...]

    def __str__(self) -> str:
        return ";".join(map(str, self.instructions))

    @property
    def flops(self) -> int:
        """Floating-point operations an element."""
        return sum(_FLOPS.get(i.operation, 1) for i in self.instructions)

    @property
    def is_multiple(self) -> bool:
        """Whether the result is a number times the only input."""
        if self.inputs != 1:
            return False
        kinds = ["multiple"]
        for instruction in self.instructions:
            of = {kinds[v] for v in instruction.of}
            match instruction.operation:
                case "number":
                    kinds.append("number")
                case "negate" | "add" | "subtract" if of == {"multiple"}:
                    kinds.append("multiple")
                case "multiply" if of == {"multiple", "number"}:
                    kinds.append("multiple")
                case _:
                    return False
        return kinds[-1] == "multiple"

    def read_backward(self, constant: Sequence[int] = ()) -> set[int]:
        """The inputs that gradients are computed from.

        Parameters
        ----------
        constant
            Inputs that have no gradient.
        """
        behind = [{v} for v in range(self.inputs)]  # the inputs that a value depends on
        sloped = [v not in constant for v in range(self.inputs)]
        for instruction in self.instructions:
            behind.append(set().union(*(behind[v] for v in instruction.of)))
            sloped.append(any(sloped[v] and s is not None for v, s in _slopes(instruction)))
        read: set[int] = set()
        for number, instruction in enumerate(self.instructions, self.inputs):
            for value, needs in _slopes(instruction):
                if needs is None or not sloped[value]:
                    continue
                for need in needs:
                    read |= behind[number if need == "y" else instruction.of[int(need)]]
        return read


def _slopes(instruction: Instruction) -> list[tuple[int, str | None]]:
    """Each argument's value, and what its slope needs; None if it has none."""
    needs = _SLOPES.get(instruction.operation, (None,) * len(instruction.of))
    return [
        (value, None if (instruction.operation, k) in _NO_SLOPE else need)
        for k, (value, need) in enumerate(zip(instruction.of, needs, strict=True))
    ]


@functools.lru_cache(maxsize=4096)
def program_of(formula: str) -> Program:
    """The program of a formula.

    Raises
    ------
    UserError
        If it is no formula, leaves out an input, or is too long.
    """
    return _Builder(formula).build()


def outermost(formula: str) -> str:
    """The function that a formula ends with, the input that is all of it, or else nothing."""
    match _parsed(formula):
        case ast.Call(ast.Name(name), _) | ast.Name(name):
            return name
    return ""


@functools.lru_cache(maxsize=4096)
def with_real_comparisons(formula: str) -> str:
    """A formula whose comparisons are ``real(...)``, for libraries in which they are no numbers."""
    return ast.unparse(_Comparisons().visit(_parsed(formula)))


class _Comparisons(ast.NodeTransformer):
    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        return ast.Call(ast.Name("real"), [node], [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """The condition of ``where`` may stay as it is."""
        condition = node.args[0] if node.args else None
        if not isinstance(condition, ast.Compare) or ast.unparse(node.func) != "where":
            return self.generic_visit(node)
        self.generic_visit(condition)
        rest = [self.visit(argument) for argument in node.args[1:]]
        return ast.Call(node.func, [condition, *rest], [])


class _Builder:
    """Turns a formula into instructions; equal ones are computed once."""

    def __init__(self, formula: str) -> None:
        self.formula = formula
        self.numbers: dict[Instruction, int] = {}
        self.tree = _parsed(formula)
        words = [node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)]
        used = [int(word[1:]) for word in words if re.fullmatch(r"x[0-9]{1,9}", word)]
        self.inputs = max(used, default=-1) + 1
        if not 1 <= self.inputs <= MAX_INPUTS:
            raise self._wrong(f"it takes 1 to {MAX_INPUTS} inputs, x0 to x{MAX_INPUTS - 1}")
        self.names = {f"x{i}": i for i in range(self.inputs)}

    def build(self) -> Program:
        try:
            result = self._value(self.tree, self.names)
        except (ArithmeticError, TypeError):
            raise self._wrong("its numbers cannot be computed") from None
        except RecursionError:
            raise self._wrong("it is nested too deeply") from None
        instructions = tuple(self.numbers)
        used = {v for i in instructions for v in i.of} | {result}
        if unused := [name for name, v in self.names.items() if v not in used]:
            raise self._wrong(f"it does not use {', '.join(unused)}")
        if self.inputs + len(instructions) > MAX_VALUES:
            raise self._wrong(
                f"it takes {len(instructions)} steps, but only {MAX_VALUES - self.inputs} are "
                "possible; cut it in two"
            )
        return Program(self.inputs, instructions)

    def _wrong(self, why: str) -> UserError:
        return UserError(f"formula '{self.formula[:80]}': {why}")

    def _add(self, instruction: Instruction) -> int:
        return self.numbers.setdefault(instruction, self.inputs + len(self.numbers))

    def _number(self, value: float) -> int:
        if not math.isfinite(value) and not math.isinf(value):
            raise self._wrong("its numbers cannot be computed")
        return self._add(Instruction("number", (), float(value)))

    def _value(self, node: ast.expr, names: dict[str, int]) -> int:
        """The number of an expression's value."""
        constant = _constant(node)
        if constant is not None:
            return self._number(constant)
        match node:
            case ast.Name(name) if name in names:
                return names[name]
            case ast.Name(name):
                raise self._wrong(f"there is no '{name}'; its inputs are {', '.join(self.names)}")
            case ast.UnaryOp(ast.USub(), operand):
                return self._add(Instruction("negate", (self._value(operand, names),)))
            case ast.UnaryOp(ast.UAdd(), operand):
                return self._value(operand, names)
            case ast.BinOp(left, operator, right) if type(operator) in _BINARY:
                return self._binary(_BINARY[type(operator)], left, right, names)
            case ast.Compare(left, [ast.NotEq()], [right]):
                pair = (self._value(left, names), self._value(right, names))
                equal = self._add(Instruction("equal", pair))
                return self._add(Instruction("subtract", (self._number(1.0), equal)))
            case ast.Compare(left, [operator], [right]) if type(operator) in _COMPARED:
                operation, swapped = _COMPARED[type(operator)]
                pair = (self._value(left, names), self._value(right, names))
                return self._add(Instruction(operation, pair[::-1] if swapped else pair))
            case ast.Call(ast.Name(function), arguments, []):
                return self._call(function, [self._value(a, names) for a in arguments])
        raise self._wrong(f"'{ast.unparse(node)[:40]}' is not possible in a formula")

    def _binary(
        self, operation: str, left: ast.expr, right: ast.expr, names: dict[str, int]
    ) -> int:
        a, exponent = self._value(left, names), _constant(right)
        if operation == "power" and exponent is not None:
            return self._power(a, exponent)
        if operation == "divide" and exponent:
            return self._add(Instruction("multiply", (a, self._number(1 / exponent))))
        return self._add(Instruction(operation, (a, self._value(right, names))))

    def _power(self, a: int, exponent: float) -> int:
        """Small powers are products; roots have operations of their own."""
        special = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
        if exponent in special:
            return self._add(Instruction(special[exponent], (a,)))
        if exponent in (1, 2, 3, 4):
            square = self._add(Instruction("multiply", (a, a))) if exponent > 1 else a
            second = {1: None, 2: None, 3: a, 4: square}[int(exponent)]
            if second is None:
                return square
            return self._add(Instruction("multiply", (square, second)))
        return self._add(Instruction("power", (a, self._number(exponent))))

    def _call(self, function: str, of: list[int]) -> int:
        counts = {"where": 3, "clamp": 3, "minimum": 2, "maximum": 2} | dict.fromkeys(FUNCTIONS, 1)
        if function == "hardtanh" and len(of) == 3:
            return self._add(Instruction(function, tuple(of)))
        if function not in counts:
            raise self._wrong(f"there is no function '{function}'; there are {', '.join(counts)}")
        if len(of) != counts[function]:
            raise self._wrong(f"{function} takes {counts[function]} arguments, but got {len(of)}")
        inner = FUNCTIONS.get(function)
        if inner is not None:
            return self._value(_parsed(inner), {"x": of[0]})
        return self._add(Instruction(function, tuple(of)))


def _parsed(formula: str) -> ast.expr:
    try:
        return ast.parse(formula.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(f"formula '{formula[:80]}': it is no expression") from None


def _constant(node: ast.expr) -> float | None:
    """The value of an expression of numbers alone."""
    match node:
        case ast.Constant(value) if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        case ast.UnaryOp(ast.USub(), operand):
            value = _constant(operand)
            return None if value is None else -value
        case ast.BinOp(left, operator, right) if type(operator) in _BINARY:
            a, b = _constant(left), _constant(right)
            if a is None or b is None:
                return None
            return _FOLDED[_BINARY[type(operator)]](a, b)
    return None
