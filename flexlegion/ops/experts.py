"""Mixtures of experts: who computes which row, and the experts' networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import GlorotUniform, Initializer
from flexlegion.graph.operator_type import (
    WHOLE,
    Access,
    Dim,
    DimKind,
    Family,
    OperatorType,
    WeightSpec,
    along,
    identity,
    outer_dims,
    reduced_dim,
)
from flexlegion.graph.tensor import Shape

ACTIVATIONS = ("relu", "gelu", "silu")


@dataclass(frozen=True)
class TopK(OperatorType):
    """Input and output (n, ..., c): the k largest of each row, and 0 elsewhere.

    Of equal values, those that come first count as larger.
    """

    type: ClassVar[str] = "top_k"
    family: ClassVar[Family] = "normalization"

    k: int

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        if len(inputs[0]) < 2 or not 1 <= self.k <= inputs[0][-1]:
            raise UserError(
                f"top_k takes 1 up to all values of the last dimension, but is to take {self.k} of "
                f"shape {list(inputs[0])}"
            )
        return inputs[0]

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        *outer, last = outer_dims(len(inputs[0]))
        return (*outer, Dim(last.name, DimKind.NONE))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access(identity(len(inputs[0])), saved=True),)

    def flops(self, inputs: Sequence[Shape]) -> int:
        return prod(inputs[0]) * inputs[0][-1]  # each is compared with all others


@dataclass(frozen=True)
class Capacity(OperatorType):
    """Input and output (n, ..., c): of each column, the first values that are not 0, else 0.

    The rows of the whole batch count, in their order; so the rows cannot be split, but the columns
    can.

    Parameters
    ----------
    most
        How many values a column keeps.
    """

    type: ClassVar[str] = "capacity"
    family: ClassVar[Family] = "normalization"

    most: int

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        if len(inputs[0]) < 2 or self.most < 1:
            raise UserError(
                f"a capacity is at least 1, of rows (sample, ..., expert), but is {self.most} of "
                f"shape {list(inputs[0])}"
            )
        return inputs[0]

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        *outer, last = outer_dims(len(inputs[0]))
        return (*(Dim(dim.name, DimKind.NONE) for dim in outer), last)

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access(identity(len(inputs[0])), saved=True),)

    def flops(self, inputs: Sequence[Shape]) -> int:
        return prod(inputs[0])


@dataclass(frozen=True)
class Experts(OperatorType):
    """Rows (n, ..., d) and gates (n, ..., experts), output (n, ..., d): a sum of networks.

    Each row goes to the experts whose gate is not 0 there, and the output is the sum of their
    results, times the gates. An expert is a pair of dense layers without biases: up (experts,
    units, d), and down (experts, d, units) of the activation; if `gated`, of the activation times
    a third one's result, gate (experts, units, d), as in SwiGLU (Shazeer 2020). Gates of 0 have no
    gradient.

    Samples, positions, experts and units can be split. Tasks that have some of the experts (expert
    parallelism), or some units of each, compute partial sums. Simulations take all tasks to have as
    much to do, which is so where rows are routed evenly.

    Parameters
    ----------
    units
        Of the layer between.
    activation
        "relu", "gelu" or "silu".
    gated
        Whether there is the third one.
    load
        How many of the experts a row goes to on average, which simulations assume.
    """

    type: ClassVar[str] = "experts"
    family: ClassVar[Family] = "matmul"
    rounds_weights: ClassVar[bool] = True
    assumption: ClassVar[str] = "each expert computes as many rows as any other"

    units: int
    activation: str
    gated: bool
    load: float
    # First values of up, down and gate.
    initializers: tuple[Initializer, ...] = field(default=(GlorotUniform(),) * 3, compare=False)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        x, gates = inputs
        if len(x) < 2 or gates[:-1] != x[:-1]:
            raise UserError(
                "experts take rows (sample, ..., channel) and gates (sample, ..., expert), but got "
                f"shapes {list(x)} and {list(gates)}"
            )
        return x

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        experts, d = inputs[1][-1], inputs[0][-1]
        wide, narrow = (experts, self.units, d), (experts, d, self.units)
        weights = zip(("up", "down", "gate"), (wide, narrow, wide), self.initializers, strict=True)
        return tuple(WeightSpec(*weight) for weight in weights)[: 2 + self.gated]

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        *outer, last = outer_dims(len(inputs[0]))
        expert, unit = reduced_dim("expert", inputs[1][-1]), reduced_dim("unit", self.units)
        return (*outer, Dim(last.name, DimKind.NONE), expert, unit)

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        rank = len(inputs[0])
        rows = identity(rank - 1)
        return (Access((*rows, WHOLE), saved=True), Access((*rows, along(rank)), saved=True))

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        rank = len(inputs[0])
        expert, unit = along(rank), along(rank + 1)
        wide, narrow = (expert, unit, WHOLE), (expert, WHOLE, unit)
        return tuple(Access(map_, saved=True) for map_ in (wide, narrow, wide)[: 2 + self.gated])

    def flops(self, inputs: Sequence[Shape]) -> int:
        return round(self._routed(inputs) * 2 * inputs[0][-1] * self.units * (2 + self.gated))

    def backward_flops(self, inputs: Sequence[Shape]) -> int:
        # Two products for each of the forward pass's, and what is between the layers again.
        again = round(self._routed(inputs) * 2 * inputs[0][-1] * self.units * (1 + self.gated))
        return 2 * self.flops(inputs) + again

    def measured_share(self, inputs: Sequence[Shape]) -> float:
        return self.load / inputs[1][-1]  # of made-up gates, none is 0

    def _routed(self, inputs: Sequence[Shape]) -> float:
        """Pairs of a row and an expert that computes it."""
        return self.load * prod(inputs[0][:-1])
