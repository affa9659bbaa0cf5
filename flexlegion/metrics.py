"""Metrics: means over labels of the sums that loss tasks return."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from flexlegion.errors import UserError


@dataclass
class MetricSums:
    """Sums over labels that count; they add up over tasks, batches and ranks.

    A sample has one label, a sequence one for each of its steps. Of classes with equal logits, the
    first is taken to be the likelier.

    Parameters
    ----------
    loss, correct, correct_top5, squared_error, absolute_error
        Sums of each label's value; `correct_top5`: its class is among the five likeliest.
    labels
        Number of labels that count.
    samples
        Number of samples.
    """

    loss: float = 0.0
    correct: float = 0.0
    correct_top5: float = 0.0
    squared_error: float = 0.0
    absolute_error: float = 0.0
    labels: int = 0
    samples: int = 0

    def add(self, other: MetricSums) -> None:
        """Add another batch's sums."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def means(self, metrics: Sequence[str]) -> dict[str, float]:
        """The loss and the named metrics, as means over the labels that count."""
        n = max(self.labels, 1)
        values = {"loss": self.loss / n}
        for name in metrics:
            if name == "perplexity":
                values[name] = _exp(values["loss"])
            else:
                values[name] = getattr(self, _SUM_OF[name]) / n
        return values


_SUM_OF = {
    "accuracy": "correct",
    "top_5_accuracy": "correct_top5",
    "mean_squared_error": "squared_error",
    "mean_absolute_error": "absolute_error",
}

_OF_CLASSES = ("accuracy", "top_5_accuracy", "perplexity")
_OF_VALUES = ("mean_squared_error", "mean_absolute_error")


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def check_metrics(metrics: Sequence[str], loss: str) -> tuple[str, ...]:
    """The metrics, if they go with the loss.

    Raises
    ------
    UserError
        If one is unknown, or is not defined for that loss.
    """
    possible = _OF_VALUES if loss == "mean_squared_error" else _OF_CLASSES
    for metric in metrics:
        if metric not in possible:
            raise UserError(
                f"metric '{metric}' does not go with the loss {loss}; "
                f"choose among {', '.join(possible)}"
            )
    return tuple(metrics)
