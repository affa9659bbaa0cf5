"""2D pooling, NHWC: maximum or average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from flexlegion.graph.operator_type import (
    Access,
    Dim,
    Family,
    OperatorType,
    along,
    outer_dims,
    require_rank,
    window,
)
from flexlegion.graph.tensor import Shape
from flexlegion.ops.conv2d import sliding_extent


@dataclass(frozen=True)
class Pool2D(OperatorType):
    """Input (n, h, w, c), output (n, oh, ow, c)."""

    type: ClassVar[str] = "pool2d"
    family: ClassVar[Family] = "pooling"

    kind: str  # "max" or "average"
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    padding_h: int = 0
    padding_w: int = 0
    count_include_pad: bool = True

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        require_rank("pool2d", inputs[0], 4, "(sample, height, width, channel)")
        n, h, w, c = inputs[0]
        return (
            n,
            sliding_extent("pool2d", h, self.kernel_h, self.stride_h, self.padding_h),
            sliding_extent("pool2d", w, self.kernel_w, self.stride_w, self.padding_w),
            c,
        )

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return outer_dims(4)

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        rows = window(1, self.kernel_h, self.stride_h, self.padding_h)
        columns = window(2, self.kernel_w, self.stride_w, self.padding_w)
        most = self.kind == "max"
        return (Access((along(0), rows, columns, along(3)), saved=most, linear=not most),)

    def flops(self, inputs: Sequence[Shape]) -> int:
        return prod(self.output_shape(inputs)) * self.kernel_h * self.kernel_w
