"""Progress of training: a bar on a terminal, plain lines elsewhere, nothing on other ranks."""

from __future__ import annotations

import math
from datetime import timedelta
from types import TracebackType

from flexlegion.base.quoting import say
from flexlegion.console.progress import ProgressBar
from flexlegion.console.text import wrapped
from flexlegion.objective.metrics import Goal, Totals


def format_metrics(values: dict[str, float]) -> str:
    """For people: ``loss 0.1234  accuracy 97.2 %``."""
    parts = []
    for name, value in values.items():
        number = f"{value:.4f}" if abs(value) < 1e6 else f"{value:.4g}"
        text = f"{100 * value:.2f} %" if name.endswith("accuracy") else number
        parts.append(f"{name.replace('_', ' ')} {text}")
    return "  ".join(parts)


class EpochProgress:
    """Shows one epoch of a training.

    Parameters
    ----------
    label
        For example ``epoch 3/15``.
    samples
        Number of samples of the epoch.
    goal
        What to show.
    shown
        False prints nothing.
    done
        Samples of it that were trained before this process began.
    """

    def __init__(self, label: str, samples: int, goal: Goal, shown: bool, done: int = 0) -> None:
        self.label, self.samples, self.goal, self.shown = label, samples, goal, shown
        self._done = done
        self._bar = ProgressBar(label, shown, stderr=False)

    def __enter__(self) -> EpochProgress:
        self._bar.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def update(self, sums: Totals) -> None:
        """Show the sums so far."""
        if self._bar.live:
            rate = self._bar.rate(sums.samples - self._done)
            loss = self.goal.means(sums.losses)["loss"]  # all metrics are too long for a line
            status = f"{format_metrics({'loss': loss})}  {rate} samples/s"
            self._bar.show(sums.samples / max(self.samples, 1), status)

    def finish(self, values: dict[str, float], speed: str, left: float) -> None:
        """Print the epoch's line.

        Parameters
        ----------
        values
            Loss and metrics.
        speed
            Of its training, as in ``1,234 samples/s``.
        left
            Seconds that the epochs after it will take.
        """
        if self.shown:
            if left > 0:
                speed += f", {timedelta(seconds=math.ceil(left))} left"
            line = f"{self.label}  {format_metrics(values)}  {speed}"
            say(wrapped(line, indent=len(self.label) + 2))
