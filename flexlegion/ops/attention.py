"""Attention: Luong's for recurrent networks, and the multi-head core of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from flexlegion.errors import UserError
from flexlegion.initializers import GlorotUniform, Initializer
from flexlegion.ops.base import (
    SAMPLE,
    WHOLE,
    Access,
    Dim,
    DimKind,
    Family,
    OperatorType,
    WeightSpec,
    along,
    require_rank,
)
from flexlegion.tensor import Shape

_SOFTMAX = 5  # operations an element, as for the operator of that name


@dataclass(frozen=True)
class LuongAttention(OperatorType):
    """Global attention with the score "general" (Luong, Pham, Manning 2015, section 3.1).

    Inputs: decoder states h (n, steps, d) and encoder states s (n, S, e). Weights: score_kernel
    W_a (d, e) and kernel W_c (units, e + d). Output (n, steps, units)::

        a = softmax over S of (h W_a s),  context = sum over S of (a s),
        output = tanh(W_c [context; h])

    A split of the units splits W_c; each of those tasks computes the scores of its samples and
    steps. The backward pass computes the weights a and the contexts again.
    """

    type: ClassVar[str] = "luong_attention"
    family: ClassVar[Family] = "matmul"

    units: int
    kernel_initializer: Initializer = field(default=GlorotUniform(), compare=False)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        for shape in inputs:
            require_rank("luong_attention", shape, 3, "(sample, step, channel)")
        if inputs[0][0] != inputs[1][0]:
            raise UserError(
                f"luong_attention takes as many samples of the decoder as of the encoder, but got "
                f"shapes {list(inputs[0])} and {list(inputs[1])}"
            )
        return (*inputs[0][:2], self.units)

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        d, e = inputs[0][2], inputs[1][2]
        return (
            WeightSpec("score_kernel", (d, e), self.kernel_initializer),
            WeightSpec("kernel", (self.units, e + d), self.kernel_initializer),
        )

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (SAMPLE, Dim("length", DimKind.ATTRIBUTE), Dim("channel", DimKind.PARAMETER))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (
            Access((along(0), along(1), WHOLE), saved=True),
            Access((along(0), WHOLE, WHOLE), saved=True),
        )

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access((WHOLE, WHOLE), saved=True), Access((along(2), WHOLE), saved=True))

    def output_saved(self) -> bool:
        return True

    def flops(self, inputs: Sequence[Shape]) -> int:
        (n, steps, d), (_, source, e) = inputs
        scores = 2 * d * e + (2 * e + _SOFTMAX) * source
        context = 2 * source * e
        combination = self.units * (2 * (e + d) + 1)
        return n * steps * (scores + context + combination)


@dataclass(frozen=True)
class MultiHeadAttention(OperatorType):
    """The core of multi-head attention (Vaswani et al. 2017, section 3.2), without projections.

    Inputs: queries (n, s, heads, d), keys (n, t, heads, d), values (n, t, heads, e). Output
    (n, s, heads, e): softmax(queries keys / sqrt(d)) values, for each head. If `causal`, position i
    attends to the positions up to i, and s equals t.

    The backward pass computes the weights of the positions again.
    """

    type: ClassVar[str] = "multi_head_attention"
    family: ClassVar[Family] = "matmul"

    causal: bool

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        for shape in inputs:
            require_rank("multi_head_attention", shape, 4, "(sample, position, head, channel)")
        q, k, v = inputs
        if not (q[0] == k[0] == v[0] and k[1] == v[1] and q[2] == k[2] == v[2] and q[3] == k[3]):
            raise UserError(
                "multi_head_attention takes queries (n, s, heads, d), keys (n, t, heads, d) and "
                f"values (n, t, heads, e), but got {list(q)}, {list(k)} and {list(v)}"
            )
        if self.causal and q[1] != k[1]:
            raise UserError(
                f"causal attention takes as many queries as keys, but got {q[1]} and {k[1]}"
            )
        return (*q[:3], v[3])

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (
            SAMPLE,
            Dim("length", DimKind.ATTRIBUTE),
            Dim("head", DimKind.ATTRIBUTE),
            Dim("channel", DimKind.NONE),
        )

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        others = Access((along(0), WHOLE, along(2), WHOLE), saved=True)
        return (Access((along(0), along(1), along(2), WHOLE), saved=True), others, others)

    def flops(self, inputs: Sequence[Shape]) -> int:
        n, s, heads, d = inputs[0]
        t, e = inputs[1][1], inputs[2][3]
        pairs = s * (s + 1) // 2 if self.causal else s * t
        return n * heads * pairs * (2 * d + _SOFTMAX + 2 * e)

    def backward_flops(self, inputs: Sequence[Shape]) -> int:
        # Five matrix products for the forward pass's two: the scores again, and the gradients of
        # values, weights, queries and keys.
        return 5 * self.flops(inputs) // 2


@dataclass(frozen=True)
class MatMul(OperatorType):
    """Inputs (n, ..., i, k) and (n, ..., k, j), output (n, ..., i, j), without weights."""

    type: ClassVar[str] = "matmul"
    family: ClassVar[Family] = "matmul"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        a, b = inputs
        if len(a) < 3 or len(a) != len(b) or a[:-2] != b[:-2] or a[-1] != b[-2]:
            raise UserError(
                "matmul takes inputs (n, ..., i, k) and (n, ..., k, j), but got "
                f"{list(a)} and {list(b)}"
            )
        return (*a[:-1], b[-1])

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        batch = [Dim(f"dim{d}", DimKind.ATTRIBUTE) for d in range(1, len(inputs[0]) - 2)]
        return (SAMPLE, *batch, Dim("row", DimKind.ATTRIBUTE), Dim("column", DimKind.ATTRIBUTE))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        rank = len(inputs[0])
        batch = tuple(along(d) for d in range(rank - 2))
        return (
            Access((*batch, along(rank - 2), WHOLE), saved=True),
            Access((*batch, WHOLE, along(rank - 1)), saved=True),
        )

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 2 * prod(self.output_shape(inputs)) * inputs[0][-1]
