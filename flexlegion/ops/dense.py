"""Fully connected layer with fused bias and activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import GlorotUniform, Initializer, Zeros
from flexlegion.graph.operator_type import (
    Access,
    Dim,
    DimKind,
    Family,
    OperatorType,
    WeightSpec,
    along,
    outer_dims,
    reduced_dim,
)
from flexlegion.graph.tensor import Shape


@dataclass(frozen=True)
class Dense(OperatorType):
    """Input (n, ..., i), kernel (o, i), bias (o), output (n, ..., o).

    Split by its input ("in"), each part multiplies a range of the input's channels with the
    kernel's columns of that range: Megatron's row-parallel layer.
    """

    type: ClassVar[str] = "dense"
    family: ClassVar[Family] = "matmul"
    rounds_weights: ClassVar[bool] = True

    units: int
    use_bias: bool = True
    activation: str = "none"
    kernel_initializer: Initializer = field(default=GlorotUniform(), compare=False)
    bias_initializer: Initializer = field(default=Zeros(), compare=False)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        if len(inputs[0]) < 2:
            raise UserError(f"dense takes at least 2 dimensions, but got shape {list(inputs[0])}")
        return (*inputs[0][:-1], self.units)

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        kernel = WeightSpec("kernel", (self.units, inputs[0][-1]), self.kernel_initializer)
        bias = WeightSpec("bias", (self.units,), self.bias_initializer)
        return (kernel, bias) if self.use_bias else (kernel,)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        # An activation is of the sum, so that partial values have none.
        inner = reduced_dim("in", inputs[0][-1], split=self.activation == "none")
        return (*outer_dims(len(inputs[0]))[:-1], Dim("channel", DimKind.PARAMETER), inner)

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        rank = len(inputs[0])
        outer = tuple(along(d) for d in range(rank - 1))
        linear = self.activation == "none"
        return (Access((*outer, along(rank)), saved=True, linear=linear),)

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        rank = len(inputs[0])
        channel = along(rank - 1)
        kernel = Access((channel, along(rank)), saved=True)
        return (kernel, Access((channel,), once=(rank,))) if self.use_bias else (kernel,)

    def output_saved(self) -> bool:
        return self.activation != "none"

    def flops(self, inputs: Sequence[Shape]) -> int:
        return prod(self.output_shape(inputs)) * (2 * inputs[0][-1] + self.use_bias)
