"""Sources read ahead: every batch still holds its own samples when late tasks read it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flexlegion.base.errors import UserError
from flexlegion.data.sources import BatchSource
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.arrays import check_labels
from flexlegion.objective.metrics import MetricSums
from flexlegion.training.feeds import SourceFeed, arrays_for
from flexlegion.training.loader_feed import LoaderFeed
from flexlegion.training.mapped import MappedArrays
from flexlegion.training.program import TRAIN, Batch
from flexlegion.training.trainer import run_series


class LateProgram:
    """Reads a batch's arrays as late as Legion could: when the iteration's metrics are awaited."""

    def __init__(self, here: Mapping[str, tuple[int, int]] | None = None) -> None:
        self.here = here or {}  # which samples of a batch this rank stages, by the tensor's name
        self.arrays: list[np.ndarray] = []
        self.staged: Batch | None = None
        self.issued: dict[int, tuple[Batch, int]] = {}
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []
        self.rates: list[float] = []

    def staged_here(self, tensor: Tensor) -> np.ndarray:
        here = np.zeros(tensor.shape[0], bool)
        first, last = self.here.get(tensor.name, (0, None))
        here[first:last] = True
        return here

    def add_data(self, _tensor: Tensor, array: np.ndarray, _byte_values: Any = None) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1

    def series(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def stage(self, _run: int, batch: Batch) -> None:
        self.staged = batch

    def step(self, _run: int, valid: int, following: Batch, step: int, lr: float) -> int:
        assert self.staged is not None
        self.issued[step] = (self.staged, valid)
        self.rates.append(lr)
        self.staged = following
        return step

    ranks = 1

    def finish(self, ticket: int) -> None:
        pass

    def all_metrics(self, tickets: Sequence[int], say: int) -> tuple[list[list[MetricSums]], int]:
        return [self.metrics(ticket) for ticket in tickets], say

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
        self.read_rows: list[int] = []
        self.labels_read: list[int] = []

    def __len__(self) -> int:
        return self.n

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((2,), ())

    def read(self, row: int, epoch: int, out: Sequence[np.ndarray]) -> None:
        self.read_rows.append(row)
        time.sleep(row % 3 * 1e-4)
        if row == self.bad:
            raise UserError("7.png: this image cannot be read")
        out[0][...] = (epoch, row)
        out[1][...] = row % 5

    def read_labels(self, row: int, _epoch: int, out: Sequence[np.ndarray]) -> None:
        self.labels_read.append(row)
        out[1][...] = row % 5


def alone(mine: bytes) -> list[bytes]:
    return [mine]


def feed_of(
    program: Any,
    source: BatchSource,
    batch_size: int,
    classes: int = 5,
    labels: str = "int32",
    gather: Callable[[bytes], list[bytes]] = alone,
) -> SourceFeed:
    x = Tensor("x", (batch_size, 2), "float32", "input")
    y = Tensor("labels", (batch_size,), labels, "input")

    def check(arrays: dict[Tensor, np.ndarray]) -> None:
        if y in arrays:
            check_labels(source.name, arrays[y], classes)

    return SourceFeed(program, [x], [y], source, batch_size, check, gather)


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

    def gather(mine: bytes) -> list[bytes]:  # other ranks have got something else
        return [mine] + [b"else"] * (ranks - 1)

    return LoaderFeed(program, [x, labels], loader, batch_size, arrays_of, 0, gather)


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
    x, y = Tensor("x", (4, 3), "float32", "input"), Tensor("labels", (4,), "int32", "input")
    with pytest.raises(UserError, match=r"shapes \[2\], \[\], but the model's .* \[3\], \[\]"):
        SourceFeed(program, [x], [y], Numbers(9), 4, lambda _: None, alone)
    feed = feed_of(program, Numbers(9), 4, classes=4)
    with pytest.raises(UserError, match=r"numbers: label 4 is out of range; the model has 4 cl"):
        run_series(program, TRAIN, feed.batches(np.arange(9), 0))
    feed.close()


@pytest.mark.parametrize("labels", ["int32", "float32"])
def test_a_rank_reads_what_it_stages(labels: str) -> None:
    # The second half of each batch's images; of labels, what the last rank has is elsewhere.
    program: Any = LateProgram({"x": (3, 6), "labels": (4, 5)})
    source = Numbers(20)
    feed = feed_of(program, source, 6, labels=labels)
    rows = np.random.default_rng(0).permutation(20)
    run_series(program, TRAIN, feed.batches(rows, 2))
    feed.close()
    parts = [rows[i : i + 6] for i in range(0, 20, 6)]
    mine = [row for part in parts for row in part[3:]]
    assert sorted(source.read_rows) == sorted(mine)
    # Class numbers are counted on every rank.
    others = [row for part in parts for row in part[:3]] if labels == "int32" else []
    assert sorted(source.labels_read) == sorted(others)
    for part, (x, y) in zip(parts, program.seen, strict=True):
        assert x[3:].tolist() == [[2, row] for row in part[3:]]
        known = y if labels == "int32" else y[3:]
        assert known.tolist() == (part % 5)[len(part) - len(known) :].tolist()


def test_labels_alone_are_staged_elsewhere() -> None:
    program: Any = LateProgram({"x": (0, 0)})
    source = Numbers(9)
    feed = feed_of(program, source, 4, labels="float32")
    run_series(program, TRAIN, feed.batches(np.arange(9), 0))
    feed.close()
    assert source.read_rows == []
    assert sorted(source.labels_read) == list(range(9))


def test_what_another_rank_cannot_read_ends_all() -> None:
    """Ranks make the same calls, and agree after 1, 2, 4, ... batches whether all could read."""
    sentence = b"7.png: this image cannot be read"
    shared: list[bytes] = []

    def of_two(mine: bytes) -> list[bytes]:  # the other one fails within the third batch
        theirs = b"" if not mine else bytes(len(mine))
        if len(shared) >= 2:
            theirs = b"\1" if len(mine) == 1 else sentence.ljust(len(mine), b"\0")
        shared.extend([mine] if mine else [])
        return [mine, theirs]

    program: Any = LateProgram()
    feed = feed_of(program, Numbers(100), 4, gather=of_two)
    with pytest.raises(UserError, match=sentence.decode()):
        run_series(program, TRAIN, feed.batches(np.arange(100), 0))
    feed.close()
    assert shared == [b"\0"] * 3 + [bytes(1000)]
    assert len(program.issued) + len(program.seen) == 4 - 2


def test_a_rank_that_fails_goes_on_until_all_agree() -> None:
    def of_two(mine: bytes) -> list[bytes]:
        return [mine, bytes(len(mine))]

    program: Any = LateProgram()
    feed = feed_of(program, Numbers(100, bad=9), 4, gather=of_two)
    with pytest.raises(UserError, match=r"7.png: this image cannot be read"):
        run_series(program, TRAIN, feed.batches(np.arange(100), 0))
    feed.close()
    assert len(program.issued) + len(program.seen) == 4 - 2
    # Nothing of the batch that could not be read reaches a task.
    assert not any(array.any() for array in program.arrays[4:6])
    # At the end of the samples they agree in any case.
    program = LateProgram()
    feed = feed_of(program, Numbers(30, bad=29), 4, gather=of_two)
    with pytest.raises(UserError, match=r"7.png: this image cannot be read"):
        run_series(program, TRAIN, feed.batches(np.arange(30), 0))
    feed.close()


def test_the_schedule_scales_the_rate_of_every_step() -> None:
    program: Any = LateProgram()
    feed = feed_of(program, Numbers(12), 4)
    batches = feed.batches(np.arange(12), 0)
    run_series(program, TRAIN, batches, first_step=5, lr=0.5, schedule=lambda step: step)
    assert program.rates == [2.5, 3.0, 3.5]
    feed.close()


def test_memory_mapped_rows_are_converted_as_they_are_read(tmp_path: Path) -> None:
    def mapped(array: np.ndarray) -> np.ndarray:
        path = tmp_path / f"{array.dtype}.npy"
        np.save(path, array)
        return np.load(path, mmap_mode="r")

    x = Tensor("x", (4, 3), "float32", "input")
    tokens = Tensor("tokens", (4, 2), "int32", "input")
    y = Tensor("labels", (4,), "int32", "input")
    pixels = np.arange(250, 256, dtype=np.uint8).reshape(2, 3)
    words = np.array([[7, 8], [9, 2**31]])
    source = MappedArrays({x: mapped(pixels), tokens: mapped(words)}, {y: np.array([1, 2])})
    assert (len(source), source.shapes) == (2, ((3,), (2,), ()))
    arrays = arrays_for(source, [x, tokens, y], 2)
    assert [array.dtype for array in arrays] == [np.uint8, np.int32, np.int32]
    rows = [[array[i, ...] for array in arrays] for i in range(2)]
    source.read(0, 0, rows[0])
    source.read_labels(1, 0, rows[1])
    values = source.byte_values[0]
    assert values is not None
    assert values[arrays[0]].tolist() == [[250, 251, 252], [0, 0, 0]]
    assert arrays[1].tolist() == [[7, 8], [0, 0]]
    assert arrays[2].tolist() == [1, 2]
    with pytest.raises(UserError, match="tokens: sample 1 has numbers beyond 32 bits"):
        source.read(1, 0, rows[1])
    with pytest.raises(UserError, match="tokens: a memory-mapped array of whole numbers has to ha"):
        MappedArrays({tokens: mapped(words / 2)}, {})
    with pytest.raises(UserError, match="x has 2, labels has 3"):
        MappedArrays({x: mapped(pixels)}, {y: np.zeros(3, np.int32)})
