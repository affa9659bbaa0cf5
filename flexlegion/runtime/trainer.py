"""Loops over batches: they keep a few iterations in flight, and read metrics behind them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from flexlegion.metrics import MetricSums
from flexlegion.runtime.program import NO_BATCH, Batch, Program

# Iterations issued before the metrics of the oldest are awaited: enough to hide Legion's analysis,
# few enough that progress is fresh and an interruption is prompt.
IN_FLIGHT = 3

# Called with the sums of the batches finished so far.
Report = Callable[[MetricSums], None]


def batches(rows: npt.NDArray[np.int64], batch_size: int, data: Sequence[int]) -> Iterator[Batch]:
    """Cut rows into batches; the last one may be short."""
    for start in range(0, len(rows), batch_size):
        yield Batch(data, rows[start : start + batch_size])


def run_series(
    program: Program,
    run: int,
    series: Sequence[Batch],
    *,
    first_step: int = 0,
    lr: float = 0.0,
    report: Report | None = None,
) -> MetricSums:
    """Run one iteration for each batch, loading each while the one before computes.

    Parameters
    ----------
    program
        What to run.
    run
        TRAIN or EVALUATE.
    series
        The batches.
    first_step
        Number of the first iteration.
    lr
        Learning rate.
    report
        Called after every finished batch.

    Returns
    -------
    MetricSums
        Over all samples.
    """
    total = MetricSums()
    tickets: deque[int] = deque()

    def finish_one() -> None:
        total.add(program.metrics(tickets.popleft()))
        if report is not None:
            report(total)

    program.stage(run, series[0])
    for i, batch in enumerate(series):
        following = series[i + 1] if i + 1 < len(series) else NO_BATCH
        tickets.append(program.step(run, len(batch.rows), following, first_step + i, lr))
        if len(tickets) > IN_FLIGHT:
            finish_one()
    while tickets:
        finish_one()
    return total
