"""Gated recurrent units (Cho et al. 2014): the steps of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
    identity,
    require_rank,
)
from flexlegion.graph.tensor import Shape

_POINTWISE = 12  # a unit: two sigmoids, a tanh, three products, six sums


@dataclass(frozen=True)
class GRU(OperatorType):
    """Inputs x (n, steps, d), and the state h0 (n, hidden) unless it is zero.

    Outputs y (n, steps, hidden), the state after the last step, h (n, hidden), and gates
    (n, steps, 4, hidden), which the backward pass alone reads. Weights kernel (hidden, 3, d),
    recurrent_kernel (hidden, 3, hidden), bias and recurrent_bias (hidden, 3), with the gates in the
    order r, z, n::

        r, z = sigmoid(kernel x + bias + recurrent_kernel h + recurrent_bias)
        n = tanh(kernel x + bias + r (recurrent_kernel h + recurrent_bias))
        h <- (1 - z) n + z h

    Each unit needs all units of the step before, so that neither steps nor units can be split. With
    `reverse`, the last step comes first.
    """

    type: ClassVar[str] = "gru"
    family: ClassVar[Family] = "matmul"
    output_names: ClassVar[tuple[str, ...]] = ("y", "h", "gates")
    # Gates never leave their task's device.
    float32_outputs: ClassVar[tuple[str, ...]] = ("gates",)
    rounds_weights: ClassVar[bool] = True

    hidden: int
    kernel_initializer: Initializer = field(default=GlorotUniform(), compare=False)
    recurrent_initializer: Initializer = field(default=GlorotUniform(), compare=False)
    bias_initializer: Initializer = field(default=Zeros(), compare=False)
    recurrent_bias_initializer: Initializer = field(default=Zeros(), compare=False)
    reverse: bool = False

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        require_rank("gru", inputs[0], 3, "(sample, step, channel)")
        n, steps, _ = inputs[0]
        if len(inputs) not in (1, 2):
            raise UserError(f"gru takes x, or x and h0, but got {len(inputs)} inputs")
        if inputs[1:] and tuple(inputs[1]) != (n, self.hidden):
            raise UserError(
                f"gru takes a state of shape {[n, self.hidden]}, but got {list(inputs[1])}"
            )
        return (n, steps, self.hidden)

    def output_shapes(self, inputs: Sequence[Shape]) -> Sequence[Shape]:
        n, steps, hidden = self.output_shape(inputs)
        return ((n, steps, hidden), (n, hidden), (n, steps, 4, hidden))

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        h, d = self.hidden, inputs[0][2]
        return (
            WeightSpec("kernel", (h, 3, d), self.kernel_initializer),
            WeightSpec("recurrent_kernel", (h, 3, h), self.recurrent_initializer),
            WeightSpec("bias", (h, 3), self.bias_initializer),
            WeightSpec("recurrent_bias", (h, 3), self.recurrent_bias_initializer),
        )

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (SAMPLE, Dim("length", DimKind.NONE), Dim("channel", DimKind.NONE))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        x = Access((along(0), WHOLE, WHOLE), saved=True)
        h0 = Access((along(0), WHOLE), saved=True)
        return (x, h0)[: len(inputs)]

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        kernel = Access((WHOLE, WHOLE, WHOLE), saved=True)
        bias = Access((WHOLE, WHOLE))
        return (kernel, kernel, bias, bias)

    def output_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        gates = Access((along(0), along(1), WHOLE, along(2)), saved=True)
        return (Access(identity(3), saved=True), Access((along(0), along(2))), gates)

    def flops(self, inputs: Sequence[Shape]) -> int:
        n, steps, d = inputs[0]
        recurrent = steps if len(inputs) == 2 else steps - 1
        products = 2 * 3 * self.hidden * (steps * d + recurrent * self.hidden)
        return n * (products + steps * self.hidden * (6 + _POINTWISE))
