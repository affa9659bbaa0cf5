"""Layers of element-wise arithmetic, and the weights that it may read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import unknown
from flexlegion.graph.initializers import AnyInitializer, Given, Initializer, initializer
from flexlegion.graph.operator_type import OperatorType
from flexlegion.graph.tensor import MAX_EXTENT, MAX_RANK, DataType, Tensor
from flexlegion.layers.arrays import array_of, check_numbers
from flexlegion.layers.base import LayerBase
from flexlegion.ops.elementwise import Dropout, DropPath, Gelu, Relu, Sigmoid, Tanh
from flexlegion.ops.expression import Expression
from flexlegion.ops.formula import FUNCTIONS
from flexlegion.ops.merge import Add, Multiply
from flexlegion.ops.softmax import Softmax

Term = Tensor | float

# Functions with operators of their own, whose kernels are faster than a program.
_OPERATORS: dict[str, type[OperatorType]] = {
    "relu": Relu,
    "sigmoid": Sigmoid,
    "tanh": Tanh,
    "gelu": Gelu,
}


@typed_methods
class ElementwiseLayers(LayerBase):
    """The layers of element-wise arithmetic of a graph under construction."""

    def elementwise(
        self, formula: str, inputs: Sequence[Tensor], name: str | None = None
    ) -> Tensor:
        """A formula over tensors, which are broadcast to one shape.

        Parameters
        ----------
        formula
            Over ``x0``, ``x1``, ...: the inputs. In Python's syntax: numbers, ``+ - * / **``,
            comparisons (which give 0 or 1), ``where(condition, a, b)``, ``minimum(a, b)``,
            ``maximum(a, b)``, ``clamp(x, low, high)``, ``hardtanh(x, low, high)``, and the
            functions of `unary`: ``"x0 * sigmoid(x1) + 0.5"``. Slopes where a function has two
            branches are PyTorch's; so `clamp` has slope 1 at its bounds, and `hardtanh` 0.
        inputs
            One to eight. As in NumPy, an extent of 1 is repeated; so is a sample extent of 1. The
            samples always go with the samples: (n, c) goes with (n, h, w, c). Integers are
            converted.
        name
            Of the operator.

        Returns
        -------
        Tensor
            float32.

        Raises
        ------
        UserError
            If it is no such formula, or the shapes do not fit.
        """
        return self._elementwise(formula, inputs, self._name("elementwise", name))

    def unary(self, x: Tensor, function: str, name: str | None = None) -> Tensor:
        """A function of each element.

        Parameters
        ----------
        x
            Of any shape.
        function
            relu, sigmoid, tanh, gelu (exact), gelu_tanh, quick_gelu, silu, mish, hardswish,
            hardsigmoid, hardtanh, relu6, elu, selu, leaky_relu (slope 0.01), softplus, log_sigmoid,
            softsign, exp, expm1, log, log1p, sqrt, rsqrt, square, reciprocal, neg, abs, sign,
            floor, ceil, sin, cos, asin, acos, atan, erf, or detach (the value, without a gradient).
            Layers take the same names as their ``activation``.
        name
            Of the operator.

        Returns
        -------
        Tensor
            Of the same shape.

        Raises
        ------
        UserError
            If there is no such function.
        """
        if function not in FUNCTIONS:
            raise unknown("function", function, FUNCTIONS)
        name = self._name(function, name)
        if function in _OPERATORS and x.dtype == "float32":
            return self._add(_OPERATORS[function](), x, name)
        return self._elementwise(f"{function}(x0)", [x], name)

    def relu(self, x: Tensor, name: str | None = None) -> Tensor:
        """max(x, 0)."""
        return self.unary(x, "relu", name)

    def sigmoid(self, x: Tensor, name: str | None = None) -> Tensor:
        """1 / (1 + exp(-x))."""
        return self.unary(x, "sigmoid", name)

    def tanh(self, x: Tensor, name: str | None = None) -> Tensor:
        """Hyperbolic tangent."""
        return self.unary(x, "tanh", name)

    def gelu(self, x: Tensor, name: str | None = None) -> Tensor:
        """x * Phi(x), exact; ``unary(x, "gelu_tanh")`` is its approximation by tanh."""
        if name in ("tanh", "none"):  # not a name, but what other libraries' gelu takes there
            raise UserError(
                f"gelu(x, '{name}') would name the layer so; its approximation by tanh is "
                "unary(x, 'gelu_tanh')"
            )
        return self.unary(x, "gelu", name)

    def silu(self, x: Tensor, name: str | None = None) -> Tensor:
        """x * sigmoid(x)."""
        return self.unary(x, "silu", name)

    def leaky_relu(self, x: Tensor, slope: float = 0.01, name: str | None = None) -> Tensor:
        """x where it is positive, else slope * x."""
        name = self._name("leaky_relu", name)
        return self._elementwise(f"where(x0 > 0, x0, {float(slope)!r} * x0)", [x], name)

    def elu(self, x: Tensor, alpha: float = 1.0, name: str | None = None) -> Tensor:
        """x where it is positive, else alpha * (exp(x) - 1)."""
        formula = f"where(x0 > 0, x0, {float(alpha)!r} * expm1(where(x0 > 0, 0, x0)))"
        return self._elementwise(formula, [x], self._name("elu", name))

    def prelu(
        self,
        x: Tensor,
        slope: float | npt.NDArray[Any] = 0.25,
        channels: int | None = None,
        name: str | None = None,
        trainable: bool = True,
    ) -> Tensor:
        """x where it is positive, else slope * x, with slopes that are trained.

        There is one slope a channel, the last dimension, or with ``channels=1`` one for all; they
        begin with `slope`. The weight is called ``NAME.slope``.
        """
        name = self._name("prelu", name)
        count = x.shape[-1] if channels is None else channels
        if count not in (1, x.shape[-1]):
            raise UserError(
                f"prelu has a slope for each of {x.shape[-1]} channels, or one for all, but got "
                f"channels={channels}"
            )
        values = array_of("prelu's slope", slope)
        check_numbers("prelu's slope", values)
        if values.shape not in ((), (1,), (count,)):
            raise UserError(
                f"prelu's slope has shape {list(values.shape)}, but has to be one number or one of "
                f"each of the {count} channels"
            )
        first = np.broadcast_to(values.astype(np.float32), (count,))
        slopes = self.parameter((count,), first, f"{name}.slope", trainable)
        return self._elementwise("where(x0 > 0, x0, x1 * x0)", [x, slopes], name)

    def add(self, inputs: Sequence[Term], name: str | None = None) -> Tensor:
        """Element-wise sum of tensors, broadcast as in `elementwise`, and numbers."""
        name = self._name("add", name)
        if (tensors := _of_one_shape(inputs)) is not None:
            return self.graph.add(Add(), tensors, name)
        return self._joined(" + ", inputs, name)

    def multiply(self, inputs: Sequence[Term], name: str | None = None) -> Tensor:
        """Element-wise product of tensors, broadcast as in `elementwise`, and numbers."""
        name = self._name("multiply", name)
        tensors = _of_one_shape(inputs)
        if tensors is not None and len(inputs) == 2:
            return self.graph.add(Multiply(), tensors, name)
        return self._joined(" * ", inputs, name)

    def subtract(self, a: Term, b: Term, name: str | None = None) -> Tensor:
        """a - b, element-wise, of tensors, broadcast as in `elementwise`, or numbers."""
        return self._joined(" - ", [a, b], self._name("subtract", name))

    def divide(self, a: Term, b: Term, name: str | None = None) -> Tensor:
        """a / b, element-wise, of tensors, broadcast as in `elementwise`, or numbers."""
        if isinstance(b, int | float) and b == 0:
            raise UserError("divide: 'b' is 0, by which nothing can be divided")
        return self._joined(" / ", [a, b], self._name("divide", name))

    def parameter(
        self,
        shape: Sequence[int],
        initializer: AnyInitializer = "normal",
        name: str | None = None,
        trainable: bool = True,
    ) -> Tensor:
        """A weight that layers read among their inputs: a scale for `multiply`, say.

        Parameters
        ----------
        shape
            Of the weight, without samples.
        initializer
            Its first values.
        name
            Of the weight.
        trainable
            Whether training updates it.

        Returns
        -------
        Tensor
            (1, \\*shape); where it meets samples, element-wise layers repeat it.

        Raises
        ------
        UserError
            If the shape is none, or the first values do not fit.
        """
        return self._weight("parameter", shape, initializer, name, trainable)

    def constant(self, array: Any, name: str | None = None) -> Tensor:
        """An array that layers read among their inputs, and nothing changes.

        Parameters
        ----------
        array
            What NumPy makes an array of. Integers and truth values become int32, others float32.
        name
            Of the weight that it becomes.

        Returns
        -------
        Tensor
            (1, \\*array.shape).
        """
        values = array_of("a constant", array)
        if values.dtype.kind not in "biuf":
            raise UserError(f"a constant is an array of numbers, but got one of {values.dtype}")
        if values.dtype.kind in "iu" and values.size:
            limits = np.iinfo(np.int32)
            for extreme in (int(values.min()), int(values.max())):
                if not limits.min <= extreme <= limits.max:
                    raise UserError(f"a constant's {extreme} is no 32-bit integer")
        dtype: DataType = "float32" if values.dtype.kind == "f" else "int32"
        return self._weight("constant", values.shape, values, name, False, dtype)

    def expand(self, x: Tensor, shape: Sequence[int], name: str | None = None) -> Tensor:
        """Repeat along dimensions of extent 1.

        Parameters
        ----------
        x
            A sample extent of 1 becomes the batch's, too.
        shape
            Of a sample, in the end; dimensions in front are new.
        name
            Of the operator.

        Returns
        -------
        Tensor
            (batch size, \\*shape).

        Raises
        ------
        UserError
            If `x` cannot be broadcast to that.
        """
        self._check_shape("expand", shape)
        name = self._name("expand", name)
        return self._elementwise("x0", [x], name, (self.batch_size, *shape))

    def dropout(self, x: Tensor, rate: float, name: str | None = None) -> Tensor:
        """Zero elements with probability `rate` while training, and scale the others up."""
        kind = Dropout(self._rate(rate), len(self.graph.operators))
        return self._add(kind, x, self._name("dropout", name))

    def drop_path(self, x: Tensor, rate: float, name: str | None = None) -> Tensor:
        """Zero whole samples with probability `rate` while training, and scale the others up."""
        kind = DropPath(self._rate(rate), len(self.graph.operators))
        return self._add(kind, x, self._name("drop_path", name))

    def _activated(self, x: Tensor, activation: str | None, name: str) -> Tensor:
        if activation is None:
            return x
        name = f"{name}.{activation}"
        return (
            self._add(Softmax(), x, name)
            if activation == "softmax"
            else self.unary(x, activation, name)
        )

    def _weight(
        self,
        kind: str,
        shape: Sequence[int],
        values: str | Initializer | npt.NDArray[Any],
        name: str | None,
        trainable: bool,
        dtype: DataType = "float32",
    ) -> Tensor:
        self._check_shape(kind, shape)
        first = initializer(values)
        if isinstance(first, Given):
            first.check(tuple(shape), name or kind)
            first = first.for_one_sample()
        return self.graph.add_weight(self._name(kind, name), (1, *shape), first, dtype, trainable)

    @staticmethod
    def _check_shape(what: str, shape: Sequence[int]) -> None:
        if len(shape) >= MAX_RANK or any(not 1 <= extent <= MAX_EXTENT for extent in shape):
            raise UserError(
                f"{what} takes a shape of at most {MAX_RANK - 1} positive extents, but got "
                f"{list(shape)}"
            )

    def _joined(self, sign: str, terms: Sequence[Term], name: str) -> Tensor:
        """The formula that joins terms by a sign."""
        if len(terms) < 2:
            raise UserError(f"operator '{name}' takes at least 2 inputs, but got {len(terms)}")
        tensors: list[Tensor] = []
        words = []
        for term in terms:
            if isinstance(term, Tensor):
                words.append(f"x{len(tensors)}")
                tensors.append(term)
            else:
                words.append(f"({float(term)!r})")
        return self._elementwise(sign.join(words), tensors, name)

    def _elementwise(
        self, formula: str, inputs: Sequence[Tensor], name: str, shape: tuple[int, ...] = ()
    ) -> Tensor:
        integers = tuple(i for i, x in enumerate(inputs) if x.dtype == "int32")
        return self.graph.add(Expression(formula, integers, shape), inputs, name)


def _of_one_shape(terms: Sequence[Term]) -> list[Tensor] | None:
    """The terms, if all are float32 tensors of one shape."""
    tensors = [t for t in terms if isinstance(t, Tensor) and t.dtype == "float32"]
    alike = len(tensors) == len(terms) and len({t.shape for t in tensors}) <= 1
    return tensors if alike else None
