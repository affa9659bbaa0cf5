"""1D convolution and pooling over (sample, length, channel)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from flexlegion.graph.initializers import GlorotUniform, Initializer, Zeros
from flexlegion.graph.operator_type import (
    SAMPLE,
    WHOLE,
    Access,
    Dim,
    DimKind,
    Family,
    OperatorType,
    WeightSpec,
    along,
    outer_dims,
    require_rank,
    window,
)
from flexlegion.graph.tensor import Shape
from flexlegion.ops.conv2d import sliding_extent

_LAYOUT = "(sample, length, channel)"


@dataclass(frozen=True)
class Conv1D(OperatorType):
    """Input (n, l, i), kernel (o, k, i), bias (o), output (n, ol, o)."""

    type: ClassVar[str] = "conv1d"
    family: ClassVar[Family] = "convolution"
    rounds_weights: ClassVar[bool] = True

    filters: int
    kernel: int
    stride: int = 1
    padding: int = 0
    use_bias: bool = True
    activation: str = "none"
    kernel_initializer: Initializer = field(default=GlorotUniform(), compare=False)
    bias_initializer: Initializer = field(default=Zeros(), compare=False)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        require_rank("conv1d", inputs[0], 3, _LAYOUT)
        n, length, _ = inputs[0]
        positions = sliding_extent("conv1d", length, self.kernel, self.stride, self.padding)
        return (n, positions, self.filters)

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        shape = (self.filters, self.kernel, inputs[0][2])
        kernel = WeightSpec("kernel", shape, self.kernel_initializer)
        bias = WeightSpec("bias", (self.filters,), self.bias_initializer)
        return (kernel, bias) if self.use_bias else (kernel,)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (SAMPLE, Dim("length", DimKind.ATTRIBUTE), Dim("channel", DimKind.PARAMETER))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        positions = window(1, self.kernel, self.stride, self.padding)
        return (Access((along(0), positions, WHOLE), saved=True),)

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        kernel = Access((along(2), WHOLE, WHOLE), saved=True)
        return (kernel, Access((along(2),))) if self.use_bias else (kernel,)

    def output_saved(self) -> bool:
        return self.activation != "none"

    def flops(self, inputs: Sequence[Shape]) -> int:
        multiply_adds = self.kernel * inputs[0][2]
        return prod(self.output_shape(inputs)) * (2 * multiply_adds + self.use_bias)


@dataclass(frozen=True)
class Pool1D(OperatorType):
    """Input (n, l, c), output (n, ol, c)."""

    type: ClassVar[str] = "pool1d"
    family: ClassVar[Family] = "pooling"

    kind: str  # "max" or "average"
    kernel: int
    stride: int
    padding: int = 0
    count_include_pad: bool = True

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        require_rank("pool1d", inputs[0], 3, _LAYOUT)
        n, length, c = inputs[0]
        return (n, sliding_extent("pool1d", length, self.kernel, self.stride, self.padding), c)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return outer_dims(3)

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        positions = window(1, self.kernel, self.stride, self.padding)
        most = self.kind == "max"
        return (Access((along(0), positions, along(2)), saved=most, linear=not most),)

    def flops(self, inputs: Sequence[Shape]) -> int:
        return prod(self.output_shape(inputs)) * self.kernel
