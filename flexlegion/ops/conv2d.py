"""2D convolution, NHWC, with fused bias and activation."""

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
    DimMap,
    Family,
    OperatorType,
    WeightSpec,
    along,
    reduced_dim,
    require_rank,
    window,
)
from flexlegion.graph.tensor import Shape


def sliding_extent(name: str, extent: int, kernel: int, stride: int, padding: int) -> int:
    """Number of window positions along one dimension; raises `UserError` if there is none."""
    if padding >= kernel:
        raise UserError(f"{name}: padding {padding} must be smaller than the kernel {kernel}")
    if extent + 2 * padding < kernel:
        raise UserError(
            f"{name}: a kernel of {kernel} does not fit into {extent} positions "
            f"with padding {padding}"
        )
    return (extent + 2 * padding - kernel) // stride + 1


def spanned(kernel: int, dilation: int) -> int:
    """Positions from the first to the last that a window reads."""
    return (kernel - 1) * dilation + 1


@dataclass(frozen=True)
class Conv2D(OperatorType):
    """Input (n, h, w, i), kernel (o, kh, kw, i / groups), bias (o), output (n, oh, ow, o).

    The filters are cut into `groups` of neighbours, as the input's channels are; each reads its
    group's channels alone. What a kernel reads is `dilation` positions apart.
    """

    type: ClassVar[str] = "conv2d"
    family: ClassVar[Family] = "convolution"
    rounds_weights: ClassVar[bool] = True

    filters: int
    kernel_h: int
    kernel_w: int
    stride_h: int = 1
    stride_w: int = 1
    padding_h: int = 0
    padding_w: int = 0
    groups: int = 1
    use_bias: bool = True
    activation: str = "none"
    kernel_initializer: Initializer = field(default=GlorotUniform(), compare=False)
    bias_initializer: Initializer = field(default=Zeros(), compare=False)
    dilation_h: int = 1
    dilation_w: int = 1

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        require_rank("conv2d", inputs[0], 4, "(sample, height, width, channel)")
        n, h, w, channels = inputs[0]
        for what, count in (("channels", channels), ("filters", self.filters)):
            if count % self.groups != 0:
                raise UserError(f"conv2d: {count} {what} cannot be cut into {self.groups} groups")
        return (
            n,
            sliding_extent("conv2d", h, self._span_h, self.stride_h, self.padding_h),
            sliding_extent("conv2d", w, self._span_w, self.stride_w, self.padding_w),
            self.filters,
        )

    @property
    def _span_h(self) -> int:
        """Rows that a window spans."""
        return spanned(self.kernel_h, self.dilation_h)

    @property
    def _span_w(self) -> int:
        return spanned(self.kernel_w, self.dilation_w)

    def attributes(self) -> dict[str, str]:
        """As `OperatorType.attributes`; kernels take a dilation of 1 for granted."""
        given = super().attributes()
        return {k: v for k, v in given.items() if not (k.startswith("dilation_") and v == "1")}

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        shape = (self.filters, self.kernel_h, self.kernel_w, inputs[0][3] // self.groups)
        kernel = WeightSpec("kernel", shape, self.kernel_initializer)
        bias = WeightSpec("bias", (self.filters,), self.bias_initializer)
        return (kernel, bias) if self.use_bias else (kernel,)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (
            SAMPLE,
            Dim("height", DimKind.ATTRIBUTE),
            Dim("width", DimKind.ATTRIBUTE),
            Dim("channel", DimKind.PARAMETER),
            reduced_dim("in", inputs[0][3], split=self.groups == 1 and self.activation == "none"),
        )

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        rows = window(1, self._span_h, self.stride_h, self.padding_h)
        columns = window(2, self._span_w, self.stride_w, self.padding_w)
        channels = self._channels(inputs[0][3])
        linear = self.activation == "none"
        return (Access((along(0), rows, columns, channels), saved=True, linear=linear),)

    def _channels(self, channels: int) -> DimMap:
        """The channels that a tile reads: of the groups that its range of filters touches.

        An access map can say so where a group has one channel or one filter. Of one group, they can
        be split.
        """
        if self.groups == 1:
            return along(4)
        of_group, filters = channels // self.groups, self.filters // self.groups
        if 1 in (of_group, filters):
            return DimMap(3, of_group, filters)
        return WHOLE

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        channels = along(4) if self.groups == 1 else WHOLE
        kernel = Access((along(3), WHOLE, WHOLE, channels), saved=True)
        return (kernel, Access((along(3),), once=(4,))) if self.use_bias else (kernel,)

    def output_saved(self) -> bool:
        return self.activation != "none"

    def flops(self, inputs: Sequence[Shape]) -> int:
        multiply_adds = self.kernel_h * self.kernel_w * inputs[0][3] // self.groups
        return prod(self.output_shape(inputs)) * (2 * multiply_adds + self.use_bias)
