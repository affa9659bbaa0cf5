"""Sums, means and maxima over whole dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from flexlegion.errors import UserError
from flexlegion.ops.base import WHOLE, Access, Dim, Family, OperatorType, along, outer_dims
from flexlegion.tensor import Shape


@dataclass(frozen=True)
class Reduce(OperatorType):
    """The mean, sum or maximum over some dimensions of each sample.

    A maximum's gradient goes to the first element that has it.

    Parameters
    ----------
    kind
        "mean", "sum" or "max".
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
        return outer_dims(len(self.output_shape(inputs)))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        rank = len(inputs[0])
        outputs = [d for d in range(rank) if self.keepdims or d not in self.axes]
        access = tuple(WHOLE if d in self.axes else along(outputs.index(d)) for d in range(rank))
        return (Access(access, saved=self.kind == "max"),)

    def output_saved(self) -> bool:
        return self.kind == "max"

    def flops(self, inputs: Sequence[Shape]) -> int:
        return prod(inputs[0])
