"""Losses as operators: they read predictions and labels, and give one value a sample.

The training goal is the mean over the samples of the global batch, whatever the split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from flexlegion.errors import UserError
from flexlegion.ops.base import SAMPLE, WHOLE, Access, Dim, OperatorType, along
from flexlegion.tensor import DataType, Shape


@dataclass(frozen=True)
class _Loss(OperatorType):
    is_loss: ClassVar[bool] = True

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return (inputs[0][0],)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (SAMPLE,)

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return tuple(
            Access((along(0), *(WHOLE,) * (len(shape) - 1)), saved=True) for shape in inputs
        )


@dataclass(frozen=True)
class SoftmaxCrossEntropy(_Loss):
    """Cross-entropy of softmax(logits), numerically stable, with labels of `labels`' form.

    "sparse": class numbers, int32 (n); "one_hot": probabilities, float32 (n, c).
    """

    type: ClassVar[str] = "softmax_cross_entropy"

    labels: str = "sparse"

    def input_dtypes(self, inputs: Sequence[Shape]) -> Sequence[DataType]:
        return ("float32", "int32" if self.labels == "sparse" else "float32")

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        if len(inputs[0]) != 2:
            raise UserError(
                "categorical cross-entropy takes predictions of shape (sample, class), "
                f"but the model's output has shape {list(inputs[0])}"
            )
        return super().output_shape(inputs)

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 5 * prod(inputs[0])  # maximum, difference, exponential, sum, product with the label


@dataclass(frozen=True)
class MeanSquaredError(_Loss):
    """Mean over a sample's features of the squared difference."""

    type: ClassVar[str] = "mean_squared_error"

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 3 * prod(inputs[0])  # difference, square, sum
