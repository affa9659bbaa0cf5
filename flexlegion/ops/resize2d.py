"""Images enlarged by whole factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.graph.operator_type import (
    Access,
    Dim,
    DimMap,
    Family,
    OperatorType,
    along,
    divided,
    outer_dims,
    require_rank,
)
from flexlegion.graph.tensor import Shape

KINDS = ("nearest", "bilinear")


@dataclass(frozen=True)
class Resize2D(OperatorType):
    """Input (n, h, w, c), output (n, h * factor_h, w * factor_w, c).

    Output o lies at ``(o + 1/2) / factor - 1/2`` among an axis's inputs, or, if `align_corners`, at
    ``o * (h - 1) / (h * factor - 1)``. "nearest" takes the input in whose share of the outputs it
    is, "bilinear" a mean of the two beside it, and so of four in all.
    """

    type: ClassVar[str] = "resize2d"
    family: ClassVar[Family] = "pooling"

    kind: str
    factor_h: int
    factor_w: int
    align_corners: bool = False

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        require_rank("resize2d", inputs[0], 4, "(sample, height, width, channel)")
        if self.kind not in KINDS or min(self.factor_h, self.factor_w) < 1:
            raise UserError(
                f"resize2d takes a kind of {', '.join(KINDS)} and positive factors, but got "
                f"'{self.kind}', {self.factor_h} and {self.factor_w}"
            )
        n, h, w, c = inputs[0]
        return (n, h * self.factor_h, w * self.factor_w, c)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return outer_dims(4)

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        rows, columns = (
            self._read(d, inputs[0][d], factor)
            for d, factor in ((1, self.factor_h), (2, self.factor_w))
        )
        return (Access((along(0), rows, columns, along(3)), linear=True),)

    def _read(self, d: int, extent: int, factor: int) -> DimMap:
        """The inputs that a range of outputs lies between."""
        if self.kind == "nearest":
            return divided(d, factor)
        if not self.align_corners:
            return DimMap(d, 1, factor, -1, 1)
        # Floating-point numbers may round a place down to the input before.
        return DimMap(d, max(extent - 1, 1), max(extent * factor - 1, 1), -1, 1)

    def flops(self, inputs: Sequence[Shape]) -> int:
        taps = 1 if self.kind == "nearest" else 4
        return 2 * taps * prod(self.output_shape(inputs))
