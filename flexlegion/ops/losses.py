"""Losses as operators: they read predictions and labels, and give one value a sample (and step).

The training goal is the mean over the global batch, whatever the split: over all values that count.
Of several losses, it is the weighted sum of their means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import ClassVar, Self

from flexlegion.errors import UserError
from flexlegion.ops.base import (
    SAMPLE,
    WHOLE,
    Access,
    Dim,
    DimKind,
    Family,
    OperatorType,
    Values,
    along,
    identity,
)
from flexlegion.tensor import DataType, Shape


@dataclass(frozen=True)
class LossOperator(OperatorType):
    """A loss.

    Parameters
    ----------
    weight
        What its mean is multiplied with; no attribute of its kernel, as the runtime does it.
    """

    family: ClassVar[Family] = "loss"
    is_loss: ClassVar[bool] = True
    metrics: ClassVar[tuple[str, ...]] = ()  # that go with it

    weight: float = field(default=1.0, kw_only=True)

    @property
    def title(self) -> str:
        """What users call it."""
        return self.type

    def weighted(self, weight: float) -> Self:
        """The same loss with another weight."""
        return replace(self, weight=weight)

    def attributes(self) -> dict[str, str]:
        """See `OperatorType`."""
        return {name: text for name, text in super().attributes().items() if name != "weight"}

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return (inputs[0][0],)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (SAMPLE,)

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return tuple(
            Access((along(0), *(WHOLE,) * (len(shape) - 1)), saved=True) for shape in inputs
        )


@dataclass(frozen=True)
class SoftmaxCrossEntropy(LossOperator):
    """Cross-entropy of softmax(logits), numerically stable, with labels of `labels`' form.

    Logits (n, c), or of sequences (n, steps, c). "sparse": class numbers, int32 (n) or (n, steps);
    "one_hot": probabilities, float32 of the logits' shape. Labels below 0 do not count, e.g. where
    a sentence is over. Output (n) or (n, steps); so is log_sum, the logarithm of the sum of the
    logits' exponentials, with which the backward pass reads the logits but once. Of each label,
    the share `smoothing` is given to all classes evenly.
    """

    type: ClassVar[str] = "softmax_cross_entropy"
    output_names: ClassVar[tuple[str, ...]] = ("output", "log_sum")
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "top_5_accuracy", "perplexity")

    labels: str = "sparse"
    smoothing: float = 0.0

    @property
    def title(self) -> str:
        """See `LossOperator`."""
        return f"{'sparse_' if self.labels == 'sparse' else ''}categorical_crossentropy"

    def input_dtypes(self, inputs: Sequence[Shape]) -> Sequence[DataType]:
        return ("float32", "int32" if self.labels == "sparse" else "float32")

    def input_values(self, inputs: Sequence[Shape]) -> Sequence[Values]:
        return ("any", inputs[0][-1] if self.labels == "sparse" else "one-hot")

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        if len(inputs[0]) not in (2, 3):
            raise UserError(
                "categorical cross-entropy takes predictions of shape (sample, class) or "
                "(sample, step, class), "
                f"but the model's output has shape {list(inputs[0])}"
            )
        return inputs[0][:-1]

    def output_shapes(self, inputs: Sequence[Shape]) -> Sequence[Shape]:
        return (self.output_shape(inputs),) * 2

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (SAMPLE, Dim("length", DimKind.ATTRIBUTE))[: len(inputs[0]) - 1]

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        outer = identity(len(inputs[0]) - 1)
        labels = outer if self.labels == "sparse" else (*outer, WHOLE)
        return (Access((*outer, WHOLE), saved=True), Access(labels, saved=True))

    def output_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        outer = identity(len(inputs[0]) - 1)
        return (Access(outer), Access(outer, saved=True))

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 5 * prod(inputs[0])  # maximum, difference, exponential, sum, product with the label


_ERRORS = ("mean_squared_error", "mean_absolute_error")


@dataclass(frozen=True)
class MeanSquaredError(LossOperator):
    """Mean over a sample's values of the squared difference."""

    type: ClassVar[str] = "mean_squared_error"
    metrics: ClassVar[tuple[str, ...]] = _ERRORS

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 3 * prod(inputs[0])  # difference, square, sum


@dataclass(frozen=True)
class MeanAbsoluteError(LossOperator):
    """Mean over a sample's values of the absolute difference; where that is 0, so is its slope."""

    type: ClassVar[str] = "mean_absolute_error"
    metrics: ClassVar[tuple[str, ...]] = _ERRORS

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 3 * prod(inputs[0])  # difference, absolute value, sum


@dataclass(frozen=True)
class Huber(LossOperator):
    """Mean over a sample's values of half the squared difference, from `delta` on linear."""

    type: ClassVar[str] = "huber"
    metrics: ClassVar[tuple[str, ...]] = _ERRORS

    delta: float = 1.0

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 5 * prod(inputs[0])  # difference, absolute value, square, choice, sum


@dataclass(frozen=True)
class BinaryCrossEntropy(LossOperator):
    """Mean over a sample's values of the cross-entropy of two classes, with labels 0 to 1.

    Of sigmoid(x), for values x that are "logits"; or of the values, which are "probabilities".
    """

    type: ClassVar[str] = "binary_cross_entropy"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    of: str = "logits"

    @property
    def title(self) -> str:
        """See `LossOperator`."""
        return "binary_crossentropy"

    def input_values(self, inputs: Sequence[Shape]) -> Sequence[Values]:
        return ("any", 2)

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 6 * prod(inputs[0])  # exponential, logarithm, maximum, product, difference, sum


@dataclass(frozen=True)
class MeanLoss(LossOperator):
    """Mean over a sample's values: a loss that other operators have computed.

    Where an operator has summed up the batch already, the goal is the mean of what is left.
    """

    type: ClassVar[str] = "mean_loss"

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (SAMPLE if inputs[0][0] > 1 else Dim("sample", DimKind.NONE),)

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access((along(0), *(WHOLE,) * (len(inputs[0]) - 1))),)

    def flops(self, inputs: Sequence[Shape]) -> int:
        return prod(inputs[0])
