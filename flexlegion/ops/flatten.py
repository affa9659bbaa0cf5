"""Flattening of all dimensions but the sample, row-major."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from flexlegion.graph.operator_type import (
    WHOLE,
    Access,
    Dim,
    Family,
    OperatorType,
    along,
    divided,
    outer_dims,
)
from flexlegion.graph.tensor import Shape


@dataclass(frozen=True)
class Flatten(OperatorType):
    """Input (n, d1, d2, ...), output (n, d1*d2*...).

    A range of the output lies in a band of d1; the band is read with the other dimensions whole.
    """

    type: ClassVar[str] = "flatten"
    family: ClassVar[Family] = "copy"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return (inputs[0][0], prod(inputs[0][1:]))

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return outer_dims(2)

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        shape = inputs[0]
        if len(shape) == 1:
            return (Access((along(0),), linear=True),)
        inner = (WHOLE,) * (len(shape) - 2)
        rows = divided(1, prod(shape[2:]))
        return (Access((along(0), rows, *inner), linear=True),)

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 0
