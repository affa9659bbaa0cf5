"""Rounds of training, for workers that run under legate."""

from __future__ import annotations

import time
from collections.abc import Sequence

from common.workloads import LEARNING_RATE, Workload
from flexlegion.training.program import TRAIN, Batch, Program
from flexlegion.training.trainer import run_series


def seconds_of_round(program: Program, work: Workload, data: Sequence[int], number: int) -> float:
    """Train the batches of a round; until the last one is done."""
    series = [Batch(data, rows) for rows in work.batch_rows(number)]
    started = time.perf_counter()
    run_series(program, TRAIN, series, lr=LEARNING_RATE)
    program.wait()
    return time.perf_counter() - started
