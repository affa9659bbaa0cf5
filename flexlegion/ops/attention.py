"""Attention: Luong's for recurrent networks, and the multi-head core of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import GlorotUniform, Initializer
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
    divided,
    prefix,
    reduced_dim,
    require_rank,
)
from flexlegion.graph.tensor import Shape

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
    rounds_weights: ClassVar[bool] = True

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

    Inputs: queries (n, s, heads, d), keys (n, t, groups, d), values (n, t, groups, e) and, unless
    left out, a bias (n, heads, s, t), each of whose extents may be 1 as well. Output
    (n, s, heads, e): softmax(scale queries keys + bias) values, for each head. The heads are cut
    into groups of equal size, which share keys and values (Ainslie et al. 2023). If `causal`,
    position i attends to the positions up to i: of a split length, each part reads what stands
    before its end. A query whose biases are all -infinity attends to
    nothing: its output is zero.

    In training, weights of the positions are dropped with probability `dropout`, as by the operator
    of that name: the mask is a function of seed, `id`, iteration, sample, head and both positions.

    The backward pass computes the weights of the positions again.
    """

    type: ClassVar[str] = "multi_head_attention"
    family: ClassVar[Family] = "matmul"

    causal: bool
    scale: float
    dropout: float = 0.0
    id: int = 0

    def draws(self) -> bool:
        return self.dropout > 0

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        if len(inputs) not in (3, 4):
            raise UserError(
                "multi_head_attention takes queries, keys, values and perhaps a bias, but got "
                f"{len(inputs)} inputs"
            )
        for shape in inputs[:3]:
            require_rank("multi_head_attention", shape, 4, "(sample, position, head, channel)")
        q, k, v = inputs[:3]
        if not (q[0] == k[0] == v[0] and k[1:3] == v[1:3] and q[3] == k[3]):
            raise UserError(
                "multi_head_attention takes queries (n, s, heads, d), keys (n, t, groups, d) and "
                f"values (n, t, groups, e), but got {list(q)}, {list(k)} and {list(v)}"
            )
        if q[2] % k[2] != 0:
            raise UserError(
                f"multi_head_attention cannot deal {q[2]} heads to {k[2]} groups of equal size"
            )
        for bias in inputs[3:]:
            scores = self._scores(inputs)
            if len(bias) != 4 or any(b not in (1, x) for b, x in zip(bias, scores, strict=True)):
                raise UserError(
                    "multi_head_attention takes a bias (sample, head, query, key) whose extents "
                    f"are 1 or those of {list(scores)}, but got {list(bias)}"
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
        group = divided(2, inputs[0][2] // inputs[1][2])
        attended = prefix(1) if self.causal else WHOLE
        others = Access((along(0), attended, group, WHOLE), saved=True)
        queries = Access((along(0), along(1), along(2), WHOLE), saved=True)
        scores = (along(0), along(2), along(1), attended)
        biases = (
            Access(tuple(WHOLE if b == 1 else m for b, m in zip(bias, scores, strict=True)), True)
            for bias in inputs[3:]
        )
        return (queries, others, others, *biases)

    @staticmethod
    def _scores(inputs: Sequence[Shape]) -> Shape:
        (n, s, heads, _), (_, t, *_) = inputs[:2]
        return (n, heads, s, t)

    def flops(self, inputs: Sequence[Shape]) -> int:
        n, heads, s, t = self._scores(inputs)
        d, e = inputs[0][3], inputs[2][3]
        met = min(s, t)  # of a causal attention's queries; later ones attend to all keys
        pairs = met * (met + 1) // 2 + (s - met) * t if self.causal else s * t
        extra = len(inputs[3:]) + (2 if self.dropout else 0)
        return n * heads * pairs * (2 * d + _SOFTMAX + extra + 2 * e)

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
        row, column = Dim("row", DimKind.ATTRIBUTE), Dim("column", DimKind.ATTRIBUTE)
        return (SAMPLE, *batch, row, column, reduced_dim("inner", inputs[0][-1]))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        rank = len(inputs[0])
        batch = tuple(along(d) for d in range(rank - 2))
        return (
            Access((*batch, along(rank - 2), along(rank)), saved=True, linear=True),
            Access((*batch, along(rank), along(rank - 1)), saved=True),
        )

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 2 * prod(self.output_shape(inputs)) * inputs[0][-1]
