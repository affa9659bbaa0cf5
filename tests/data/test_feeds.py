"""Sources read ahead: every batch still holds its own samples when late tasks read it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from flexlegion.arrays import check_labels
from flexlegion.errors import UserError
from flexlegion.metrics import MetricSums
from flexlegion.runtime.feeds import SourceFeed
from flexlegion.runtime.program import TRAIN, Batch
from flexlegion.runtime.trainer import run_series
from flexlegion.sources import BatchSource
from flexlegion.tensor import Tensor


class LateProgram:
    """Reads a batch's arrays as late as Legion could: when the iteration's metrics are awaited."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self.staged: Batch | None = None
        self.issued: dict[int, tuple[Batch, int]] = {}
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []
        self.rates: list[float] = []

    def add_data(self, _tensor: Tensor, array: np.ndarray) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1

    def stage(self, _run: int, batch: Batch) -> None:
        self.staged = batch

    def step(self, _run: int, valid: int, following: Batch, step: int, lr: float) -> int:
        assert self.staged is not None
        self.issued[step] = (self.staged, valid)
        self.rates.append(lr)
        self.staged = following
        return step

    def metrics(self, ticket: int) -> list[MetricSums]:
        batch, valid = self.issued.pop(ticket)
        assert valid == len(batch.rows)
        x, y = (self.arrays[number][batch.rows].copy() for number in batch.data)
        self.seen.append((x, y))
        return [MetricSums(samples=valid)]


class Numbers(BatchSource):
    """Sample i is a vector of (epoch, i), its label i modulo 5; reading takes various times."""

    name = "numbers"

    def __init__(self, n: int, bad: int = -1) -> None:
        self.n, self.bad = n, bad

    def __len__(self) -> int:
        return self.n

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((2,), ())

    def read(self, row: int, epoch: int, out: Sequence[np.ndarray]) -> None:
        time.sleep(row % 3 * 1e-4)
        if row == self.bad:
            raise UserError("7.png: this image cannot be read")
        out[0][...] = (epoch, row)
        out[1][...] = row % 5


def feed_of(program: Any, source: BatchSource, batch_size: int, classes: int = 5) -> SourceFeed:
    tensors = [
        Tensor("x", (batch_size, 2), "float32", "input"),
        Tensor("labels", (batch_size,), "int32", "input"),
    ]

    def check(arrays: dict[Tensor, np.ndarray]) -> None:
        check_labels(source.name, arrays[tensors[1]], classes)

    return SourceFeed(program, tensors, source, batch_size, check)


@pytest.mark.parametrize(("n", "batch_size"), [(1, 4), (8, 4), (50, 4), (203, 7)])
def test_batches_hold_their_samples_until_their_iteration_ends(n: int, batch_size: int) -> None:
    program: Any = LateProgram()
    feed = feed_of(program, Numbers(n), batch_size)
    for epoch in (3, 4):
        rows = np.random.default_rng(epoch).permutation(n)
        sums = run_series(program, TRAIN, feed.batches(rows, epoch))
        assert sums.samples == n
        x = np.concatenate([x for x, _ in program.seen])
        assert x.tolist() == [[epoch, row] for row in rows]
        assert np.concatenate([y for _, y in program.seen]).tolist() == (rows % 5).tolist()
        program.seen.clear()
    feed.close()
    assert len(program.arrays) <= 2 * 7  # a ring, whatever the number of batches


def test_what_a_thread_raises_arrives() -> None:
    program: Any = LateProgram()
    feed = feed_of(program, Numbers(100, bad=57), 4)
    with pytest.raises(UserError, match=r"7.png: this image cannot be read"):
        run_series(program, TRAIN, feed.batches(np.arange(100), 0))
    feed.close()
    assert len(program.issued) + len(program.seen) == 57 // 4 - 1  # the one before is only staged


def test_refuses_what_does_not_fit() -> None:
    program: Any = LateProgram()
    with pytest.raises(UserError, match="numbers: got no samples"):
        feed_of(program, Numbers(0), 4)
    wrong = [Tensor("x", (4, 3), "float32", "input"), Tensor("labels", (4,), "int32", "input")]
    with pytest.raises(UserError, match=r"shapes \[2\], \[\], but the model's .* \[3\], \[\]"):
        SourceFeed(program, wrong, Numbers(9), 4, lambda _: None)
    feed = feed_of(program, Numbers(9), 4, classes=4)
    with pytest.raises(UserError, match=r"numbers: label 4 is out of range; the model has 4 cl"):
        run_series(program, TRAIN, feed.batches(np.arange(9), 0))
    feed.close()


def test_the_schedule_scales_the_rate_of_every_step() -> None:
    program: Any = LateProgram()
    feed = feed_of(program, Numbers(12), 4)
    batches = feed.batches(np.arange(12), 0)
    run_series(program, TRAIN, batches, first_step=5, lr=0.5, schedule=lambda step: step)
    assert program.rates == [2.5, 3.0, 3.5]
    feed.close()
