"""Operators whose weights are computed by others: merged adapters, normalised kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.graph.operator_type import (
    WHOLE,
    Access,
    Dim,
    Family,
    OperatorType,
    Values,
)
from flexlegion.graph.tensor import DataType, Shape


@dataclass(frozen=True)
class GivenWeights(OperatorType):
    """An operator type, with inputs (1, ...) behind its own in the place of its weights.

    What a task reads of such an input is what it would read of the weight, so that its gradient is
    a sum over all tasks that read the same part, as a weight's is.

    Parameters
    ----------
    kind
        The operator type: one all of whose weights are trained.
    own_inputs
        How many inputs it has by itself.
    """

    type: ClassVar[str] = "given_weights"
    family: ClassVar[Family] = "matmul"  # of the type; of each of its objects, that of its kind

    kind: OperatorType
    own_inputs: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "family", self.kind.family)

    def _own(self, inputs: Sequence[Shape]) -> Sequence[Shape]:
        return inputs[: self.own_inputs]

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        own = self._own(inputs)
        shape = self.kind.output_shape(own)
        wanted = [(1, *spec.shape) for spec in self.kind.weights(own)]
        given = list(inputs[self.own_inputs :])
        if given != wanted:
            raise UserError(
                f"{self.kind.type} takes weights {[list(w) for w in wanted]}, but got "
                f"{[list(g) for g in given]}"
            )
        return shape

    def input_dtypes(self, inputs: Sequence[Shape]) -> Sequence[DataType]:
        given: list[DataType] = ["float32"] * (len(inputs) - self.own_inputs)
        return [*self.kind.input_dtypes(self._own(inputs)), *given]

    def input_values(self, inputs: Sequence[Shape]) -> Sequence[Values]:
        given: list[Values] = ["any"] * (len(inputs) - self.own_inputs)
        return [*self.kind.input_values(self._own(inputs)), *given]

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return self.kind.dims(self._own(inputs))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        own = self._own(inputs)
        given = [
            Access((WHOLE, *access.map), saved=access.saved, once=access.once)
            for access in self.kind.weight_access(own)
        ]
        return [*self.kind.input_access(own), *given]

    def output_saved(self) -> bool:
        return self.kind.output_saved()

    def flops(self, inputs: Sequence[Shape]) -> int:
        return self.kind.flops(self._own(inputs))

    def backward_flops(self, inputs: Sequence[Shape]) -> int:
        return self.kind.backward_flops(self._own(inputs))

    def attributes(self) -> dict[str, str]:
        own = {"operator": self.kind.type, "own_inputs": str(self.own_inputs)}
        return self.kind.attributes() | own
