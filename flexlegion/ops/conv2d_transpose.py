"""Transposed 2D convolution, NHWC, with fused bias: what decoders enlarge images by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from flexlegion.base.errors import UserError
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
    reduced_dim,
    require_rank,
    spread,
)
from flexlegion.graph.tensor import Shape
from flexlegion.ops.conv2d import spanned


@dataclass(frozen=True)
class Conv2DTranspose(OperatorType):
    """Input (n, h, w, i), kernel (kh, kw, o, i), bias (o), output (n, oh, ow, o).

    Position p of the input adds to the outputs ``p * stride - padding + k * dilation``, for each k
    of the kernel. There are ``(h - 1) * stride - 2 * padding + (kh - 1) * dilation + 1 + extra``
    rows of the output; to the `extra` last ones not all of the kernel's positions can add.
    """

    type: ClassVar[str] = "conv2d_transpose"
    family: ClassVar[Family] = "convolution"
    rounds_weights: ClassVar[bool] = True

    filters: int
    kernel_h: int
    kernel_w: int
    stride_h: int = 1
    stride_w: int = 1
    padding_h: int = 0
    padding_w: int = 0
    extra_h: int = 0
    extra_w: int = 0
    dilation_h: int = 1
    dilation_w: int = 1
    use_bias: bool = True
    kernel_initializer: Initializer = field(default=GlorotUniform(), compare=False)
    bias_initializer: Initializer = field(default=Zeros(), compare=False)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        require_rank("conv2d_transpose", inputs[0], 4, "(sample, height, width, channel)")
        n, h, w, _ = inputs[0]
        rows = self._extent(h, self._span_h, self.stride_h, self.padding_h, self.extra_h)
        columns = self._extent(w, self._span_w, self.stride_w, self.padding_w, self.extra_w)
        return (n, rows, columns, self.filters)

    @staticmethod
    def _extent(extent: int, span: int, stride: int, padding: int, extra: int) -> int:
        result = (extent - 1) * stride - 2 * padding + span + extra
        if result < 1:
            raise UserError(
                f"conv2d_transpose: with padding {padding} nothing is left of {extent} positions"
            )
        return result

    @property
    def _span_h(self) -> int:
        return spanned(self.kernel_h, self.dilation_h)

    @property
    def _span_w(self) -> int:
        return spanned(self.kernel_w, self.dilation_w)

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        shape = (self.kernel_h, self.kernel_w, self.filters, inputs[0][3])
        kernel = WeightSpec("kernel", shape, self.kernel_initializer)
        bias = WeightSpec("bias", (self.filters,), self.bias_initializer)
        return (kernel, bias) if self.use_bias else (kernel,)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (
            SAMPLE,
            Dim("height", DimKind.ATTRIBUTE),
            Dim("width", DimKind.ATTRIBUTE),
            Dim("channel", DimKind.PARAMETER),
            reduced_dim("in", inputs[0][3]),
        )

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        rows = spread(1, self._span_h, self.stride_h, self.padding_h)
        columns = spread(2, self._span_w, self.stride_w, self.padding_w)
        return (Access((along(0), rows, columns, along(4)), saved=True, linear=True),)

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        kernel = Access((WHOLE, WHOLE, along(3), along(4)), saved=True)
        return (kernel, Access((along(3),), once=(4,))) if self.use_bias else (kernel,)

    def flops(self, inputs: Sequence[Shape]) -> int:
        products = self.kernel_h * self.kernel_w * self.filters * prod(inputs[0])
        return 2 * products + self.use_bias * prod(self.output_shape(inputs))
