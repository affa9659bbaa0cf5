"""Losses as operators: they read predictions and labels, and give one value a sample (and step).

The training goal is the mean over the global batch, whatever the split: over all values that count.
Of several losses, it is the weighted sum of their means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from flexlegion.graph.operator_type import (
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
from flexlegion.graph.tensor import DataType, Shape
from flexlegion.ops.logits import labels_shape, without_default

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class LossOperator(OperatorType):
    """A loss. Its last input are the labels; weights of them, (n), may come before.

    Parameters
    ----------
    weight
        What its mean is multiplied with; no attribute of its kernel, as the runtime does it.
    """

    family: ClassVar[Family] = "loss"
    is_loss: ClassVar[bool] = True
    part_of_loss: ClassVar[bool] = True
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
class _CategoricalCrossEntropy(LossOperator):
    """A cross-entropy of softmax(logits), one a label.

    Parameters
    ----------
    smoothing
        The share of each label that is given to all classes evenly.
    """

    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "top_5_accuracy", "perplexity")

    smoothing: float = 0.0

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (SAMPLE, Dim("length", DimKind.ATTRIBUTE))[: len(self.output_shape(inputs))]


@dataclass(frozen=True)
class CrossEntropy(_CategoricalCrossEntropy):
    """Cross-entropy of softmax(logits) by labels that are numbers of classes.

    Its inputs are the outputs of `LogitStatistics`; the classes' weights, (1, c), and the labels'
    weights, of their shape, if there are such; and the labels: int32 (n) or (n, steps). Labels
    below 0 do not count. Output (n) or (n, steps).

    Parameters
    ----------
    classes
        How many there are.
    ignored
        A label that does not count either; those below 0 never do.
    class_weights
        What the losses of each class are multiplied with; none: with 1. The goal is the weighted
        mean: it is divided by the sum of the weights of the labels' classes.
    label_weights
        Whether each label has a weight, too. That sum is without them.
    """

    type: ClassVar[str] = "cross_entropy"

    classes: int = field(kw_only=True)
    ignored: int = field(default=-1, kw_only=True)
    class_weights: tuple[float, ...] = field(default=(), kw_only=True, repr=False)
    label_weights: bool = field(default=False, kw_only=True)

    @property
    def title(self) -> str:
        """See `LossOperator`."""
        return "sparse_categorical_crossentropy"

    @property
    def mean_weight(self) -> float:
        """The mean of the classes' weights."""
        return sum(self.class_weights) / self.classes if self.class_weights else 1.0

    def attributes(self) -> dict[str, str]:
        """See `OperatorType`. Of the classes' weights, an input, it is said that there are some."""
        its = without_default(super().attributes())
        weighted = bool(its.pop("class_weights"))
        more = {"class_weights": "1", "mean_weight": repr(self.mean_weight)}
        return its | (more if weighted else {})

    def counted(self, labels: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """What each label adds to the number that the sum of the losses is divided by.

        Its class's weight, of a label that counts: 1 unless classes have weights.
        """
        import numpy as np

        counts = (labels >= 0) & (labels != self.ignored)
        result: npt.NDArray[np.float64] = counts.astype(np.float64)
        if self.class_weights:
            result[counts] = np.asarray(self.class_weights, np.float64)[labels[counts]]
        return result

    def input_dtypes(self, inputs: Sequence[Shape]) -> Sequence[DataType]:
        dtypes: list[DataType] = ["float32"] * len(inputs)
        dtypes[-1] = "int32"
        return dtypes

    def input_values(self, inputs: Sequence[Shape]) -> Sequence[Values]:
        values: list[Values] = ["any"] * len(inputs)
        values[-1] = self.classes
        return values

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0]

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        outer = identity(len(inputs[0]))
        statistics = 3 if self.smoothing > 0 else 2
        return (
            *(Access(outer) for _ in range(statistics)),
            *(Access((WHOLE, WHOLE), saved=True) for _ in range(bool(self.class_weights))),
            *(Access(outer, saved=True) for _ in range(self.label_weights)),
            Access(outer, saved=True),
        )

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 2 * prod(inputs[0])


@dataclass(frozen=True)
class SoftmaxCrossEntropy(_CategoricalCrossEntropy):
    """Cross-entropy of softmax(logits) by labels that are probabilities, of the logits' shape.

    Where labels have weights, (n) or (n, steps), they come between logits and labels.
    Logits (n, c), or of sequences (n, steps, c). Output (n) or (n, steps); so is log_sum, the
    logarithm of the sum of the logits' exponentials, with which the backward pass reads the logits
    but once. Its classes cannot be split: which of them is a label's likeliest only who sees all of
    them can say, and the accuracy asks for it.
    """

    type: ClassVar[str] = "softmax_cross_entropy"
    output_names: ClassVar[tuple[str, ...]] = ("output", "log_sum")

    @property
    def title(self) -> str:
        """See `LossOperator`."""
        return "categorical_crossentropy"

    def input_values(self, inputs: Sequence[Shape]) -> Sequence[Values]:
        values: list[Values] = ["any"] * len(inputs)
        values[-1] = "one-hot"
        return values

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return labels_shape(inputs[0])

    def output_shapes(self, inputs: Sequence[Shape]) -> Sequence[Shape]:
        return (self.output_shape(inputs),) * 2

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        outer = identity(len(inputs[0]) - 1)
        rows, weights = Access((*outer, WHOLE), saved=True), Access(outer, saved=True)
        return (rows, *(weights for _ in inputs[2:]), rows)

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

    Parameters
    ----------
    of
        What the values are.
    positive_weight
        What the term of the label is multiplied with, and that of 1 - label is not.
    """

    type: ClassVar[str] = "binary_cross_entropy"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    of: str = "logits"
    positive_weight: float = 1.0

    @property
    def title(self) -> str:
        """See `LossOperator`."""
        return "binary_crossentropy"

    def input_values(self, inputs: Sequence[Shape]) -> Sequence[Values]:
        values: list[Values] = ["any"] * len(inputs)
        values[-1] = 2
        return values

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
