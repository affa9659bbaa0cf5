"""Progress bars on a terminal: how much is done, how fast, and how long it will take."""

from __future__ import annotations

import sys
from time import perf_counter
from types import TracebackType
from typing import Self

from flexlegion.base.phase import begin_bar, end_bar, shows_bars
from flexlegion.console.text import duration


class ProgressBar:
    """A bar that is gone when the work is done; nothing where there is no terminal.

    It shows the share that is done, what the work says of itself, and the time left.

    Parameters
    ----------
    label
        What is being done.
    shown
        Whether to show it; not where another rank does, say.
    stderr
        On standard error; otherwise on standard output.

    Examples
    --------
    >>> with ProgressBar("search") as bar:
    ...     bar.search(0.5, 148_000_000)
    """

    def __init__(self, label: str, shown: bool = True, stderr: bool = True) -> None:
        # These take a while to import, and not every command has a bar.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        stream = sys.stderr if stderr else sys.stdout
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.percentage:>3.0f} %  {task.fields[status]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=Console(stderr=stderr),
            transient=True,
            disable=not (shown and shows_bars(stream)),
        )
        self.live = not self._progress.disable
        self._task = self._progress.add_task(label, total=1.0, status="")
        self._started = perf_counter()

    def __enter__(self) -> Self:
        begin_bar()
        self._progress.start()
        self._started = perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
        end_bar()

    def show(self, share: float, status: str) -> None:
        """Show which share of the work is done, and what it says of itself."""
        self._progress.update(self._task, completed=share, status=status)

    def search(self, share: float, best_ns: int, phase: str = "") -> None:
        """Show how a search goes; a `flexlegion.searches.mcmc.Progress`."""
        best = f"best {duration(best_ns)}" if best_ns >= 0 else "nothing fits into memory yet"
        self.show(share, f"{phase}: {best}" if phase else best)

    def steps(self, done: int, of: int) -> None:
        """Show that many steps of all."""
        self.show(done / max(of, 1), f"{done} of {of}, {self.rate(done)}/s")

    def rate(self, done: float) -> str:
        """So many of something since the start, a second."""
        rate = done / max(perf_counter() - self._started, 1e-9)
        return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
