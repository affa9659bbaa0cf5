"""A progress bar on standard error; nothing where that is no terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from flexlegion.report.text import duration


class ProgressBar:
    """A bar that is gone when the work is done.

    Parameters
    ----------
    label
        What is being done.
    shown
        Whether to show it; not where another rank does, say.

    Examples
    --------
    >>> with ProgressBar("search") as bar:
    ...     bar.search(0.5, 148_000_000)
    """

    def __init__(self, label: str, shown: bool = True) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %  {task.fields[status]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not (shown and sys.stderr.isatty()),
        )
        self._task = self._progress.add_task(label, total=1.0, status="")

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def search(self, share: float, best_ns: int) -> None:
        """Show how a search goes; a `flexlegion.searches.mcmc.Progress`."""
        status = f"best {duration(best_ns)}" if best_ns >= 0 else "nothing fits into memory yet"
        self._progress.update(self._task, completed=share, status=status)

    def steps(self, done: int, of: int) -> None:
        """Show that many steps of all."""
        self._progress.update(self._task, completed=done / max(of, 1), status=f"{done} of {of}")
