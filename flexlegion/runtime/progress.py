"""Progress of training: a bar on a terminal, plain lines elsewhere, nothing on other ranks."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from flexlegion.metrics import Goal, Totals


def format_metrics(values: dict[str, float]) -> str:
    """For people: ``loss 0.1234  accuracy 97.2 %``."""
    parts = []
    for name, value in values.items():
        number = f"{value:.4f}" if abs(value) < 1e6 else f"{value:.4g}"
        text = f"{100 * value:.2f} %" if name.endswith("accuracy") else number
        parts.append(f"{name.replace('_', ' ')} {text}")
    return "  ".join(parts)


class EpochProgress:
    """Shows one epoch.

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
    """

    def __init__(self, label: str, samples: int, goal: Goal, shown: bool) -> None:
        self.label, self.samples, self.goal, self.shown = label, samples, goal, shown
        self._started = time.perf_counter()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        if shown and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[status]}"),
                TimeRemainingColumn(),
                console=Console(),
                transient=True,
            )
            self._task = self._bar.add_task(label, total=samples, status="")

    def __enter__(self) -> EpochProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, sums: Totals) -> None:
        """Show the sums so far."""
        if self._bar is not None:
            rate = sums.samples / max(time.perf_counter() - self._started, 1e-9)
            status = f"{format_metrics(self.goal.means(sums.losses))}  {rate:,.0f} samples/s"
            self._bar.update(self._task, completed=sums.samples, status=status)

    def finish(self, values: dict[str, float], samples_per_second: float) -> None:
        """Print the epoch's line."""
        if self.shown:
            speed = f"{samples_per_second:,.0f} samples/s"
            print(f"{self.label}  {format_metrics(values)}  {speed}", flush=True)
