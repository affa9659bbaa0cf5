"""Embeddings: rows of a table, by token or by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from types import EllipsisType
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import Initializer, Normal
from flexlegion.graph.operator_type import (
    SAMPLE,
    Access,
    Dim,
    DimKind,
    Family,
    OperatorType,
    Values,
    WeightSpec,
    along,
    identity,
    outer_dims,
    reduced_dim,
    require_rank,
    rows_named_by,
    shifted,
)
from flexlegion.graph.tensor import MAX_RANK, DataType, Shape


@dataclass(frozen=True)
class Embedding(OperatorType):
    """Tokens int32 (n, ...), table (vocabulary, units), output (n, ..., units).

    Split by the table's rows ("row"), each part looks up the tokens whose rows it has; of others it
    gives zeros.

    With `steps`, it reads the tokens of the steps [start, start + steps) of sequences (n, T), so
    that the operators of an unrolled network read one batch of sequences; without, all tokens.

    Parameters
    ----------
    padding
        A token whose row has no gradient, so that training leaves it as it is; -1 for none.
    """

    type: ClassVar[str] = "embedding"
    family: ClassVar[Family] = "embedding"

    vocabulary: int
    units: int
    start: int = 0
    steps: int | None = None
    padding: int = -1
    initializer: Initializer = field(default=Normal(), compare=False)

    @property
    def window(self) -> slice | EllipsisType:
        """Which of a sample's tokens it reads, as an index."""
        return ... if self.steps is None else slice(self.start, self.start + self.steps)

    def input_dtypes(self, inputs: Sequence[Shape]) -> Sequence[DataType]:
        return ("int32",)

    def input_values(self, inputs: Sequence[Shape]) -> Sequence[Values]:
        return (self.vocabulary,)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        if self.steps is None:
            if len(inputs[0]) == MAX_RANK:
                raise UserError(f"embedding takes tokens of at most {MAX_RANK - 1} dimensions")
            return (*inputs[0], self.units)
        require_rank("embedding", inputs[0], 2, "(sample, step)")
        n, length = inputs[0]
        if self.start < 0 or self.steps < 1 or self.start + self.steps > length:
            raise UserError(
                f"embedding reads steps {self.start} to {self.start + self.steps - 1}, "
                f"but the sequences have steps 0 to {length - 1}"
            )
        return (n, self.steps, self.units)

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        return (WeightSpec("table", (self.vocabulary, self.units), self.initializer),)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        outer = outer_dims(len(inputs[0]) + 1)[:-1]
        return (*outer, Dim("channel", DimKind.PARAMETER), reduced_dim("row", self.vocabulary))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        tokens = identity(len(inputs[0]))
        if self.steps is not None:
            tokens = (along(0), shifted(1, self.start))
        return (Access(tokens, saved=True),)

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        column = len(inputs[0])
        return (Access((rows_named_by(0, column + 1), along(column))),)

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 0

    def backward_flops(self, inputs: Sequence[Shape]) -> int:
        return prod(self.output_shape(inputs))  # rows add up in the table's gradient


@dataclass(frozen=True)
class PositionEmbedding(OperatorType):
    """Input and output (n, T, d), table (T, d): adds a trained vector to each position.

    Splitting the positions or the channels splits the table.
    """

    type: ClassVar[str] = "position_embedding"
    family: ClassVar[Family] = "elementwise"

    initializer: Initializer = field(default=Normal(), compare=False)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        require_rank("position_embedding", inputs[0], 3, "(sample, position, channel)")
        return inputs[0]

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        return (WeightSpec("table", inputs[0][1:], self.initializer),)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (SAMPLE, Dim("length", DimKind.PARAMETER), Dim("channel", DimKind.PARAMETER))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access(identity(3)),)

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access((along(1), along(2))),)

    def flops(self, inputs: Sequence[Shape]) -> int:
        return prod(inputs[0])
