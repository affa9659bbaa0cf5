"""Metrics: means over samples of the sums that loss tasks return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexlegion.errors import UserError


@dataclass
class MetricSums:
    """Sums over samples; they add up over tasks, batches and ranks.

    Parameters
    ----------
    loss, correct, squared_error, absolute_error
        Sums of each sample's value.
    samples
        Number of samples.
    """

    loss: float = 0.0
    correct: float = 0.0
    squared_error: float = 0.0
    absolute_error: float = 0.0
    samples: int = 0

    def add(self, other: MetricSums) -> None:
        """Add another batch's sums."""
        self.loss += other.loss
        self.correct += other.correct
        self.squared_error += other.squared_error
        self.absolute_error += other.absolute_error
        self.samples += other.samples

    def means(self, metrics: Sequence[str]) -> dict[str, float]:
        """The loss and the named metrics, as means over the samples."""
        n = max(self.samples, 1)
        return {"loss": self.loss / n} | {m: getattr(self, _SUM_OF[m]) / n for m in metrics}


_SUM_OF = {
    "accuracy": "correct",
    "mean_squared_error": "squared_error",
    "mean_absolute_error": "absolute_error",
}


def check_metrics(metrics: Sequence[str], loss: str) -> tuple[str, ...]:
    """The metrics, if they go with the loss.

    Raises
    ------
    UserError
        If one is unknown, or is not defined for that loss.
    """
    of_regression = loss == "mean_squared_error"
    possible = [m for m in _SUM_OF if (m != "accuracy") == of_regression]
    for metric in metrics:
        if metric not in possible:
            raise UserError(
                f"metric '{metric}' does not go with the loss {loss}; "
                f"choose among {', '.join(possible)}"
            )
    return tuple(metrics)
