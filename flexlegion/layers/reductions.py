"""Layers that reduce dimensions, or divide by what is reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.elementwise import ElementwiseLayers
from flexlegion.ops.reduce import Reduce
from flexlegion.ops.softmax import Softmax


@typed_methods
class ReductionLayers(ElementwiseLayers):
    """The layers that reduce."""

    def reduce(
        self,
        x: Tensor,
        kind: Literal["mean", "sum", "max", "amax"],
        axes: int | Sequence[int],
        keepdims: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """Mean, sum or maximum over whole dimensions of each sample.

        Parameters
        ----------
        x
            What to reduce.
        kind
            Both "max" and "amax" are maxima. The gradient of the first goes to the first element
            that has it, that of the second is shared evenly by all that have it.
        axes
            One dimension or several, not the samples'; from the end if negative.
        keepdims
            Whether they stay, with an extent of 1.
        name
            Of the operator.

        Returns
        -------
        Tensor
            The dimensions that are left.

        Raises
        ------
        UserError
            If there are no such dimensions.
        """
        if kind not in ("mean", "sum", "max", "amax"):
            raise UserError(f"unknown reduction '{kind}'; use 'mean', 'sum', 'max' or 'amax'")
        given = [axes] if isinstance(axes, int) else list(axes)
        rank = len(x.shape)
        dims = tuple(sorted({axis + rank if axis < 0 else axis for axis in given}))
        if len(dims) < len(given):
            raise UserError(f"reduce: an axis occurs twice among {given}")
        return self._add(Reduce(kind, dims, keepdims), x, self._name("reduce", name))

    def softmax(self, x: Tensor, name: str | None = None) -> Tensor:
        """Softmax over the last dimension."""
        return self._add(Softmax(), x, self._name("softmax", name))

    def log_softmax(self, x: Tensor, name: str | None = None) -> Tensor:
        """The logarithm of `softmax`, also where a softmax is too small for a number."""
        return self._add(Softmax(log=True), x, self._name("log_softmax", name))

    def l2_normalize(
        self, x: Tensor, axis: int = -1, epsilon: float = 1e-12, name: str | None = None
    ) -> Tensor:
        """Divide by the root of the sum of squares along a dimension, or by `epsilon` if larger.

        Three operators: ``NAME.squares``, ``NAME.sum``, and NAME.
        """
        name = self._name("l2_normalize", name)
        squares = self.unary(x, "square", f"{name}.squares")
        total = self.reduce(squares, "sum", axis, keepdims=True, name=f"{name}.sum")
        formula = f"x0 * rsqrt(maximum(x1, {self._epsilon(epsilon) ** 2!r}))"
        return self._elementwise(formula, [x, total], name)
