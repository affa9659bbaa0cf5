"""Long short-term memory (Hochreiter and Schmidhuber 1997): one or several steps of a layer."""

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

_POINTWISE = 9  # a unit: three sigmoids, two tanhs, three products, one sum


@dataclass(frozen=True)
class LSTM(OperatorType):
    """Inputs x (n, steps, d), and the state h0, c0 (n, hidden) unless it is zero.

    Outputs y (n, steps, hidden), the state after the last step, h and c (n, hidden), and gates
    (n, steps, 5, hidden): i, f, g, o and c of every step, which the backward pass alone reads.
    Weights kernel (hidden, 4, d), recurrent_kernel (hidden, 4, hidden) and bias (hidden, 4), with
    the gates in the order i, f, g, o::

        i, f, o = sigmoid(kernel x + recurrent_kernel h + bias),  g = tanh(the same)
        c <- f c + i g,  h <- o tanh(c)

    A single step can be split by hidden units, which splits the weights: a task needs all of x and
    h0, and its own part of c0. Over several steps each unit needs all units of the step before, so
    that neither steps nor units can be split.

    With two biases, as PyTorch's layers have, their sum is the bias: each of them has its gradient,
    so that an optimizer's step moves the sum by both. With `reverse`, the last step comes first,
    and the state after the last step is that after the first one in memory.

    That the gates are kept spares the backward pass the two products that made them.
    """

    type: ClassVar[str] = "lstm"
    family: ClassVar[Family] = "matmul"
    output_names: ClassVar[tuple[str, ...]] = ("y", "h", "c", "gates")
    # Cells are added up step by step, and gates never leave their task's device.
    float32_outputs: ClassVar[tuple[str, ...]] = ("c", "gates")
    rounds_weights: ClassVar[bool] = True

    hidden: int
    kernel_initializer: Initializer = field(default=GlorotUniform(), compare=False)
    recurrent_initializer: Initializer = field(default=GlorotUniform(), compare=False)
    bias_initializer: Initializer = field(default=Zeros(), compare=False)
    recurrent_bias_initializer: Initializer = field(default=Zeros(), compare=False)
    two_biases: bool = False
    reverse: bool = False

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        require_rank("lstm", inputs[0], 3, "(sample, step, channel)")
        n, steps, _ = inputs[0]
        if len(inputs) not in (1, 3):
            raise UserError(f"lstm takes x, or x, h0 and c0, but got {len(inputs)} inputs")
        for shape in inputs[1:]:
            if shape != (n, self.hidden):
                raise UserError(
                    f"lstm takes states of shape {[n, self.hidden]}, but got {list(shape)}"
                )
        return (n, steps, self.hidden)

    def output_shapes(self, inputs: Sequence[Shape]) -> Sequence[Shape]:
        y = self.output_shape(inputs)
        state = (y[0], y[2])
        return (y, state, state, (*y[:2], 5, y[2]))

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        h, d = self.hidden, inputs[0][2]
        return (
            WeightSpec("kernel", (h, 4, d), self.kernel_initializer),
            WeightSpec("recurrent_kernel", (h, 4, h), self.recurrent_initializer),
            WeightSpec("bias", (h, 4), self.bias_initializer),
            WeightSpec("recurrent_bias", (h, 4), self.recurrent_bias_initializer),
        )[: 3 + self.two_biases]

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        channel = DimKind.PARAMETER if inputs[0][1] == 1 else DimKind.NONE
        return (SAMPLE, Dim("length", DimKind.NONE), Dim("channel", channel))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        x = Access((along(0), WHOLE, WHOLE), saved=True)
        h0 = Access((along(0), WHOLE), saved=True)
        c0 = Access((along(0), along(2)), saved=True)
        return (x, h0, c0)[: len(inputs)]

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        kernel = Access((along(2), WHOLE, WHOLE), saved=True)
        biases = (Access((along(2), WHOLE)),) * (1 + self.two_biases)
        return (kernel, kernel, *biases)

    def output_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        state = Access((along(0), along(2)))
        gates = Access((along(0), along(1), WHOLE, along(2)), saved=True)
        return (Access(identity(3), saved=inputs[0][1] > 1), state, state, gates)

    def flops(self, inputs: Sequence[Shape]) -> int:
        n, steps, d = inputs[0]
        # A zero state needs no product with the recurrent kernel.
        recurrent = steps if len(inputs) == 3 else steps - 1
        products = 2 * 4 * self.hidden * (steps * d + recurrent * self.hidden)
        return n * (products + steps * self.hidden * (4 + _POINTWISE))
