"""What the loss over classes asks of the logits, so that the classes can be split.

A task that has a part of the classes alone knows neither the sum of all exponentials nor, of most
samples, the logit of their class. Both operators give partial values, as Megatron's and
InsightFace's split losses exchange: first the own logits are summed, then what is counted relative
to them. Logits are (n, c), or of sequences (n, steps, c); labels are numbers of classes, int32 (n)
or (n, steps). Those below 0 do not count, e.g. where a sentence is over, nor does another one, if
so asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from flexlegion.base.errors import UserError
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
    reduced_dim,
)
from flexlegion.graph.tensor import DataType, Shape


def labels_shape(logits: Shape) -> Shape:
    """Without the classes; raises `UserError` unless they are logits of samples, or of steps."""
    if len(logits) not in (2, 3):
        raise UserError(
            "categorical cross-entropy takes predictions of shape (sample, class) or "
            f"(sample, step, class), but the model's output has shape {list(logits)}"
        )
    return logits[:-1]


def without_default(attributes: dict[str, str]) -> dict[str, str]:
    """An operator's attributes; kernels take for granted that no label below 0 counts."""
    return {k: v for k, v in attributes.items() if k != "ignored" or int(v) >= 0}


@dataclass(frozen=True)
class _OfLogits(OperatorType):
    """An operator that reads logits and labels first, and gives values a label.

    Parameters
    ----------
    ignored
        A label that does not count either; those below 0 never do.
    """

    part_of_loss: ClassVar[bool] = True

    ignored: int = -1

    def attributes(self) -> dict[str, str]:
        """See `OperatorType`."""
        return without_default(super().attributes())

    def input_dtypes(self, inputs: Sequence[Shape]) -> Sequence[DataType]:
        dtypes: list[DataType] = ["float32"] * len(inputs)
        dtypes[1] = "int32"
        return dtypes

    def input_values(self, inputs: Sequence[Shape]) -> Sequence[Values]:
        values: list[Values] = ["any"] * len(inputs)
        values[1] = inputs[0][-1]
        return values

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return labels_shape(inputs[0])

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        outer = (SAMPLE, Dim("length", DimKind.ATTRIBUTE))[: len(inputs[0]) - 1]
        return (*outer, reduced_dim("class", inputs[0][-1]))


@dataclass(frozen=True)
class OwnLogit(_OfLogits):
    """Inputs logits and labels; output: the logit of each label's own class, or 0 if it has none.

    No gradient passes through it: `LogitStatistics` has all of the logits'.
    """

    type: ClassVar[str] = "own_logit"
    family: ClassVar[Family] = "embedding"
    detached_outputs: ClassVar[tuple[str, ...]] = ("output",)
    float32_outputs: ClassVar[tuple[str, ...]] = ("output",)

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access(identity(len(inputs[0]))), Access(identity(len(inputs[0]) - 1)))

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 0


@dataclass(frozen=True)
class LogitStatistics(_OfLogits):
    """Inputs logits, labels, and own logits; outputs what the loss is made of, a value a label.

    The first, ``log_sum``, is the logarithm of the sum of exp(logit - own logit): of all classes,
    the cross-entropy of the label. ``rank`` counts the classes that are likelier than the own one;
    of equal logits, the first is the likelier. Where a label does not count, both are 0.
    """

    type: ClassVar[str] = "logit_statistics"
    family: ClassVar[Family] = "loss"
    output_names: ClassVar[tuple[str, ...]] = ("log_sum", "rank")
    float32_outputs: ClassVar[tuple[str, ...]] = ("log_sum", "rank", "mean")
    detached_outputs: ClassVar[tuple[str, ...]] = ("rank",)

    def output_shapes(self, inputs: Sequence[Shape]) -> Sequence[Shape]:
        return (self.output_shape(inputs),) * len(self.output_names)

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        each = Access(identity(len(inputs[0]) - 1), saved=True)
        return (Access(identity(len(inputs[0])), saved=True), each, each)

    def output_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        outer = identity(len(inputs[0]) - 1)
        log_sum = Access(outer, saved=True, combine="log_sum_exp")
        return (log_sum, *(Access(outer) for _ in self.output_names[1:]))

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 5 * prod(inputs[0])  # maximum, difference, exponential, sum, comparison


@dataclass(frozen=True)
class SmoothedLogitStatistics(LogitStatistics):
    """And ``mean``, for smoothed labels: the mean over the classes of logit - own logit.

    Where classes have weights, of these differences times the weights: a fourth input, (1, c).

    Parameters
    ----------
    mean_weight
        The mean of the classes' weights.
    """

    type: ClassVar[str] = "smoothed_logit_statistics"
    output_names: ClassVar[tuple[str, ...]] = ("log_sum", "rank", "mean")

    mean_weight: float = 1.0

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        reads = super().input_access(inputs)
        of_class = Access((WHOLE, along(len(inputs[0]) - 1)), saved=True)
        return (*reads, *(of_class for _ in inputs[3:]))

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 6 * prod(inputs[0])
