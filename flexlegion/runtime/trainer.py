"""Loops over batches: they keep a few iterations in flight, and read metrics behind them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from flexlegion.metrics import Totals
from flexlegion.runtime.program import NO_BATCH, Batch, Program
from flexlegion.schedules import Schedule, constant

# Iterations issued before the metrics of the oldest are awaited: enough to hide Legion's analysis,
# few enough that progress is fresh and an interruption is prompt.
IN_FLIGHT = 3
# When `run_series` asks for a batch, tasks may still read this many, the one asked for included:
# those of the iterations in flight, and the one that is staged. Older ones' arrays are free.
BATCHES_IN_USE = IN_FLIGHT + 2

# Called with the sums of the batches finished so far.
Report = Callable[[Totals], None]


def batches(rows: npt.NDArray[np.int64], batch_size: int, data: Sequence[int]) -> Iterator[Batch]:
    """Cut rows into batches; the last one may be short."""
    for start in range(0, len(rows), batch_size):
        yield Batch(data, rows[start : start + batch_size])


def run_series(
    program: Program,
    run: int,
    series: Iterable[Batch],
    *,
    first_step: int = 0,
    lr: float = 0.0,
    schedule: Schedule = constant,
    report: Report | None = None,
) -> Totals:
    """Run one iteration for each batch, loading each while the one before computes.

    Parameters
    ----------
    program
        What to run.
    run
        TRAIN or EVALUATE.
    series
        The batches, at least one; each is asked for when the one before is about to run.
    first_step
        Number of the first iteration.
    lr
        Learning rate.
    schedule
        What it is multiplied with at each step.
    report
        Called after every finished batch.

    Returns
    -------
    Totals
        Over all samples.
    """
    total = Totals()
    running: deque[tuple[int, int]] = deque()  # ticket, samples

    def finish_one() -> None:
        ticket, samples = running.popleft()
        total.add(program.metrics(ticket), samples)
        if report is not None:
            report(total)

    upcoming = iter(series)
    batch = next(upcoming)
    program.stage(run, batch)
    for step in itertools.count(first_step):
        following = next(upcoming, NO_BATCH)
        rate = lr * schedule(step)
        samples = len(batch.rows)
        running.append((program.step(run, samples, following, step, rate), samples))
        if len(running) > IN_FLIGHT:
            finish_one()
        if following is NO_BATCH:
            break
        batch = following
    while running:
        finish_one()
    return total
