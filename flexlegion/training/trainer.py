"""Loops over batches: they keep a few iterations in flight, and read metrics behind them."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from flexlegion.graph.tensor import Tensor
from flexlegion.objective.metrics import MetricSums, Totals
from flexlegion.objective.schedules import Schedule, constant, factor_at
from flexlegion.training.program import NO_BATCH, PREDICT, Array, Batch, Program

# Iterations issued before the metrics of the oldest are awaited: enough to hide Legion's analysis,
# few enough that progress is fresh and an interruption is prompt.
IN_FLIGHT = 3
# When `run_series` asks for a batch, tasks may still read this many, the one asked for included:
# those of the iterations in flight, and the one that is staged. Older ones' arrays are free.
BATCHES_IN_USE = IN_FLIGHT + 2

# Ranks tell each other their parts of the losses about that often: what they send for it costs as
# much as a small iteration, so not after each.
EXCHANGE_SECONDS = 0.2
MOST_BETWEEN_EXCHANGES = 256  # iterations

# What the first rank says to all: after how many iterations the next exchange is, and above these
# bits what its watcher wishes.
_WISH_BIT = 16


def predicted(
    program: Program, batch: Batch, outputs: Sequence[Tensor], size: int
) -> Iterator[list[Array]]:
    """Each of the outputs for a batch, micro-batch by micro-batch of so many rows.

    So no memory holds outputs of more than one.
    """
    for first in range(0, len(batch.rows), size):
        rows = batch.rows[first : first + size]
        program.stage(PREDICT, Batch(batch.data, rows))
        program.step(PREDICT, len(rows), NO_BATCH)
        yield [program.read(output, rounds=1)[: len(rows)] for output in outputs]


class Watcher:
    """Follows a series, and may end it; all ranks' watchers hear the same at the same iteration.

    Attributes
    ----------
    over
        No more iterations are issued once it is true.
    """

    over = False

    def wish(self) -> int:
        """What the first rank's tells all, below 2^47; asked before each exchange of the ranks."""
        return 0

    def hear(self, wish: int) -> None:
        """What the first rank's wished."""

    def finished(self, losses: Sequence[MetricSums], total: Totals) -> None:
        """An iteration has ended with these sums; those of all so far."""

    def issued(self) -> bool:
        """An iteration was issued; whether to have all end, and call `at_rest`."""
        return False

    def at_rest(self) -> None:
        """All iterations that were issued have ended, and `finished` was told of them."""


class Reporter(Watcher):
    """Only reports.

    Parameters
    ----------
    report
        Called with the sums of the batches finished so far.
    """

    def __init__(self, report: Callable[[Totals], None]) -> None:
        self._report = report

    def finished(self, _losses: Sequence[MetricSums], total: Totals) -> None:
        """See `Watcher`."""
        self._report(total)


class _Results:
    """The sums over a series, as ranks come to know them.

    On one rank they know them after every iteration. On several, all have to agree on when they
    tell each other: the first rank says each time after how many iterations, by its own clock.
    """

    def __init__(self, program: Program, watcher: Watcher, total: Totals) -> None:
        self.total = total
        self._program, self._watcher = program, watcher
        self._running: deque[tuple[int, int]] = deque()  # ticket, samples
        self._finished: list[tuple[int, int]] = []  # on this rank
        self._wanted = 1  # of these, before ranks tell each other
        self._told = time.perf_counter()

    def add(self, ticket: int, samples: int) -> None:
        """An iteration was issued. Waits for an older one."""
        self._running.append((ticket, samples))
        if len(self._running) > IN_FLIGHT:
            self._finish_one()

    def rest(self) -> None:
        """Wait for all."""
        while self._running:
            self._finish_one()
        if self._finished:
            self._exchange()

    def _finish_one(self) -> None:
        one = self._running.popleft()
        self._program.finish(one[0])
        self._finished.append(one)
        if len(self._finished) >= self._wanted:
            self._exchange()

    def _exchange(self) -> None:
        tickets = [ticket for ticket, _ in self._finished]
        say = self._watcher.wish() << _WISH_BIT | self._next_exchange()
        sums, heard = self._program.all_metrics(tickets, say)
        self._wanted = heard & ((1 << _WISH_BIT) - 1)
        for (_, samples), its in zip(self._finished, sums, strict=True):
            self.total.add(its, samples)
            self._watcher.finished(its, self.total)
        self._finished.clear()
        self._watcher.hear(heard >> _WISH_BIT)

    def _next_exchange(self) -> int:
        """After how many iterations this rank would have it."""
        if self._program.ranks == 1:
            return 1
        before, self._told = self._told, time.perf_counter()
        rate = len(self._finished) / max(self._told - before, 1e-9)
        return min(max(int(rate * EXCHANGE_SECONDS), 1), MOST_BETWEEN_EXCHANGES)


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
    report: Callable[[Totals], None] | None = None,
    watcher: Watcher | None = None,
    total: Totals | None = None,
) -> Totals:
    """Run one iteration for each batch, loading each while the one before computes.

    A watcher may end it before its time; what was issued has ended when this returns.

    Parameters
    ----------
    program
        What to run.
    run
        TRAIN or EVALUATE.
    series
        The batches; each is asked for when the one before is about to run.
    first_step
        Number of the first iteration.
    lr
        Learning rate.
    schedule
        What it is multiplied with at each step.
    report
        Called for every finished batch; on several ranks, for some of them at a time.
    watcher
        In place of `report`: follows all of it.
    total
        Sums that these are added to.

    Returns
    -------
    Totals
        Over all samples.
    """
    if watcher is None:
        watcher = Watcher() if report is None else Reporter(report)
    results = _Results(program, watcher, Totals() if total is None else total)
    upcoming = iter(series)
    batch = next(upcoming, NO_BATCH)
    if batch is NO_BATCH:
        return results.total
    with program.series():
        program.stage(run, batch)
        for step in itertools.count(first_step):
            following = next(upcoming, NO_BATCH)
            rate = lr * factor_at(schedule, step)
            samples = len(batch.rows)
            results.add(program.step(run, samples, following, step, rate), samples)
            if watcher.issued():
                results.rest()
                watcher.at_rest()
            if following is NO_BATCH or watcher.over:
                break
            batch = following
        results.rest()
    return results.total
