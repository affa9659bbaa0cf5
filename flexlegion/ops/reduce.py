"""Sums, means and maxima over whole dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.graph.operator_type import (
    MAX_SPACE,
    WHOLE,
    Access,
    Dim,
    DimMap,
    Family,
    OperatorType,
    along,
    identity,
    outer_dims,
    reduced_dim,
)
from flexlegion.graph.tensor import Shape


@dataclass(frozen=True)
class Reduce(OperatorType):
    """The mean, sum or maximum over some dimensions of each sample.

    The gradient of "max" goes to the first element that has the maximum; so of what it reduces the
    outermost dimension alone can be split. The gradient of "amax" is shared evenly by all elements
    that have it; so none of what it reduces can be split, as each part would have to know how many
    of these the others have. (PyTorch's `max` with a dimension, and its `amax`, differ so.)

    Parameters
    ----------
    kind
        "mean", "sum", "max" or "amax".
    axes
        The dimensions, in order; not the samples'.
    keepdims
        Whether they stay, with an extent of 1.
    """

    type: ClassVar[str] = "reduce"
    family: ClassVar[Family] = "normalization"

    kind: str
    axes: tuple[int, ...]
    keepdims: bool = False

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        rank = len(inputs[0])
        if not self.axes or not all(1 <= axis < rank for axis in self.axes):
            raise UserError(
                f"reduce takes dimensions 1 to {rank - 1} of its input (0 is the sample), but got "
                f"{list(self.axes)}"
            )
        kept = [1 if d in self.axes else extent for d, extent in enumerate(inputs[0])]
        if self.keepdims:
            return tuple(kept)
        return tuple(extent for d, extent in enumerate(inputs[0]) if d not in self.axes)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        outer = outer_dims(len(self.output_shape(inputs)))
        return (*outer, *(self._reduced(inputs, axis) for axis in self._spanned(inputs)))

    def _spanned(self, inputs: Sequence[Shape]) -> tuple[int, ...]:
        """The reduced axes that are dimensions of the space, which has a few at most.

        Of a "max", the outermost: so the first part that has it has the first element, too.
        """
        most = {"max": 1, "amax": 0}.get(self.kind, MAX_SPACE - len(self.output_shape(inputs)))
        return self.axes[:most]

    def _reduced(self, inputs: Sequence[Shape], axis: int) -> Dim:
        return reduced_dim(f"in.{outer_dims(len(inputs[0]))[axis].name}", inputs[0][axis])

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        rank = len(inputs[0])
        outputs = [d for d in range(rank) if self.keepdims or d not in self.axes]
        space = len(self.output_shape(inputs))
        spanned = self._spanned(inputs)

        def its(d: int) -> DimMap:
            if d in spanned:
                return along(space + spanned.index(d))
            return WHOLE if d in self.axes else along(outputs.index(d))

        most = self.kind in ("max", "amax")
        return (Access(tuple(its(d) for d in range(rank)), saved=most, linear=not most),)

    def output_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        rank = len(self.output_shape(inputs))
        if self.kind == "max":
            return (Access(identity(rank), saved=True, combine="max"),)
        if self.kind == "amax":
            return (Access(identity(rank), saved=True),)
        return (Access(identity(rank)),)

    def flops(self, inputs: Sequence[Shape]) -> int:
        return prod(inputs[0])
