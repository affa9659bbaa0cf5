"""Cosines between samples and classes, and the margins that they are trained with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import Initializer, Normal
from flexlegion.graph.operator_type import (
    SAMPLE,
    WHOLE,
    Access,
    Dim,
    DimKind,
    Family,
    OperatorType,
    Values,
    WeightSpec,
    along,
    identity,
    outer_dims,
)
from flexlegion.graph.tensor import DataType, Shape


@dataclass(frozen=True)
class Cosine(OperatorType):
    """Input (n, ..., i), kernel (o, i), output (n, ..., o): the cosine with each of its rows.

    That is a dense layer's product, of rows that are divided by their lengths.
    """

    type: ClassVar[str] = "cosine"
    family: ClassVar[Family] = "matmul"
    rounds_weights: ClassVar[bool] = True

    units: int
    kernel_initializer: Initializer = field(default=Normal(), compare=False)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        if len(inputs[0]) < 2:
            raise UserError(f"cosine takes at least 2 dimensions, but got shape {list(inputs[0])}")
        return (*inputs[0][:-1], self.units)

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        return (WeightSpec("kernel", (self.units, inputs[0][-1]), self.kernel_initializer),)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (*outer_dims(len(inputs[0]))[:-1], Dim("channel", DimKind.PARAMETER))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access((*identity(len(inputs[0]) - 1), WHOLE), saved=True),)

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access((along(len(inputs[0]) - 1), WHOLE), saved=True),)

    def output_saved(self) -> bool:
        return True

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 2 * prod(self.output_shape(inputs)) * (inputs[0][-1] + 1)


@dataclass(frozen=True)
class AngularMargin(OperatorType):
    """Cosines (n, c) and labels int32 (n), output (n, c): logits with a margin at each own class.

    The logits are `scale` times the cosines. In training, ArcFace adds the margin to the angle of
    a sample's own class (Deng et al. 2019), where that makes the cosine smaller, and goes on by a
    line from the angle pi - margin on; otherwise, as CosFace has it (Wang et al. 2018), the margin
    is subtracted from that cosine. A label below 0 is of no class.

    Parameters
    ----------
    scale, margin
        Above 0, and from 0 on.
    of_angle
        Whether the margin is ArcFace's.
    """

    type: ClassVar[str] = "angular_margin"
    family: ClassVar[Family] = "elementwise"

    scale: float
    margin: float
    of_angle: bool

    def input_dtypes(self, inputs: Sequence[Shape]) -> Sequence[DataType]:
        return ("float32", "int32")

    def input_values(self, inputs: Sequence[Shape]) -> Sequence[Values]:
        return ("any", inputs[0][-1])

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        if len(inputs[0]) != 2 or inputs[1] != inputs[0][:1]:
            raise UserError(
                "a margin takes cosines (sample, class) and a label a sample, but got shapes "
                f"{list(inputs[0])} and {list(inputs[1])}"
            )
        return inputs[0]

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (SAMPLE, Dim("channel", DimKind.ATTRIBUTE))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access(identity(2), saved=True), Access((along(0),), saved=True))

    def flops(self, inputs: Sequence[Shape]) -> int:
        return prod(inputs[0])
