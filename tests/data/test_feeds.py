"""Sources read ahead: every batch still holds its own samples when late tasks read it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from flexlegion.arrays import check_labels
from flexlegion.errors import UserError
from flexlegion.metrics import MetricSums
from flexlegion.runtime.feeds import SourceFeed
from flexlegion.runtime.loader_feed import LoaderFeed
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


class Blocks:
    """Numbers in batches of various sizes, of which some are empty."""

    def __init__(self, sizes: Sequence[int], bad: int = -1) -> None:
        self.sizes, self.bad, self.passes = sizes, bad, 0

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        self.passes += 1
        at = 0
        for size in self.sizes:
            rows = np.arange(at, at + size)
            if self.bad in rows:
                raise UserError("7.png: this image cannot be read")
            yield np.stack([np.full(size, self.passes), rows], -1).astype(np.float32), rows % 5
            at += size


def loader_feed(program: Any, loader: Blocks, batch_size: int, ranks: int = 1) -> LoaderFeed:
    x = Tensor("x", (batch_size, 2), "float32", "input")
    labels = Tensor("labels", (batch_size,), "int32", "input")

    def arrays_of(batch: Any) -> dict[Tensor, np.ndarray]:
        return {x: batch[0], labels: batch[1]}

    def share(mine: bytes) -> list[bytes]:  # other ranks have got something else
        return [mine] + [b"else"] * (ranks - 1)

    return LoaderFeed(program, [x, labels], loader, batch_size, arrays_of, 0, share)


@pytest.mark.parametrize("sizes", [[1], [4, 4], [50], [3] * 20, [1, 0, 9, 2, 33, 0]])
def test_a_loaders_batches_are_cut_anew(sizes: list[int]) -> None:
    program: Any = LateProgram()
    feed = loader_feed(program, Blocks(sizes), 4)
    n = sum(sizes)
    for number in (1, 2):
        totals = run_series(program, TRAIN, feed.batches(np.arange(feed.samples), 0))
        assert (totals.samples, totals.batches) == (n, -(-n // 4))
        x = np.concatenate([x for x, _ in program.seen])
        assert x.tolist() == [[number, row] for row in range(n)]
        assert [len(x) for x, _ in program.seen[:-1]] == [4] * (totals.batches - 1)
        assert np.concatenate([y for _, y in program.seen]).tolist() == [i % 5 for i in range(n)]
        program.seen.clear()
    assert sum(1 for _ in feed.some(3)) == 3
    feed.close()


def test_a_loader_that_fails() -> None:
    program: Any = LateProgram()
    feed = loader_feed(program, Blocks([5] * 20, bad=57), 4)
    with pytest.raises(UserError, match=r"7.png: this image cannot be read"):
        run_series(program, TRAIN, feed.batches(np.arange(100), 0))
    feed.close()
    with pytest.raises(UserError, match="the loader has no batches"):
        loader_feed(program, Blocks([]), 4)
    for loader, ranks, message in (
        (Blocks([0, 0]), 1, "the loader's batches have no samples"),
        (Blocks([5]), 2, "the ranks' loaders begin with different batches"),
    ):
        feed = loader_feed(program, loader, 4, ranks)
        with pytest.raises(UserError, match=message):
            run_series(program, TRAIN, feed.batches(np.arange(1), 0))
        feed.close()


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
