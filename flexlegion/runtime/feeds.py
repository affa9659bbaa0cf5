"""Where batches come from: arrays in memory, or a source that is read ahead of its use."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from flexlegion.errors import UserError
from flexlegion.runtime.program import Batch, Program
from flexlegion.runtime.trainer import BATCHES_IN_USE, batches
from flexlegion.sources import BatchSource
from flexlegion.tensor import Tensor

Rows = npt.NDArray[np.int64]

# Batches that are read before they are asked for: one hides the time that reading takes, a second
# one its ups and downs.
AHEAD = 2


class Feed(Protocol):
    """Data that a program can run over, any number of times."""

    samples: int  # about so many, if nobody can know

    def batches(self, rows: Rows, epoch: int) -> Iterator[Batch]:
        """Batches of these samples, in their order; a loader's are all, in its own."""

    def some(self, batches: int) -> Iterator[Batch]:
        """So many batches, from the beginning again where there are too few."""

    def close(self) -> None:
        """End the feed's threads."""


class ArrayFeed:
    """Arrays in memory, which the program knows already.

    Parameters
    ----------
    data
        Their numbers.
    samples
        Their rows.
    batch_size
        Samples a batch.
    """

    def __init__(self, data: Sequence[int], samples: int, batch_size: int) -> None:
        self.data, self.samples, self.batch_size = data, samples, batch_size

    def batches(self, rows: Rows, _epoch: int) -> Iterator[Batch]:
        """Rows of the arrays; see `Feed`."""
        return batches(rows, self.batch_size, self.data)

    def some(self, batches: int) -> Iterator[Batch]:
        """See `Feed`."""
        return self.batches(np.arange(batches * self.batch_size) % self.samples, 0)

    def close(self) -> None:
        """Nothing to end."""


class SourceFeed:
    """A source that threads read, a few batches ahead, into a ring of arrays.

    The arrays of a batch are used again once its iteration has ended; see `BATCHES_IN_USE`.

    Parameters
    ----------
    program
        What runs.
    tensors
        The inputs, in the source's order, and the labels.
    source
        The data.
    batch_size
        Samples a batch.
    check
        Raises `UserError` if something is wrong with a batch's arrays.

    Raises
    ------
    UserError
        If the source does not fit the inputs.
    """

    def __init__(
        self,
        program: Program,
        tensors: Sequence[Tensor],
        source: BatchSource,
        batch_size: int,
        check: Callable[[dict[Tensor, npt.NDArray[Any]]], None],
    ) -> None:
        self.samples = len(source)
        self.batch_size = batch_size
        self._source, self._tensors, self._check_batch = source, tensors, check
        check_source(source, tensors)
        ring = min(AHEAD + BATCHES_IN_USE, -(-self.samples // batch_size))
        self._slots: list[tuple[list[int], list[npt.NDArray[Any]]]] = []
        for _ in range(ring):
            arrays = [np.zeros((batch_size, *t.shape[1:]), t.dtype) for t in tensors]
            numbers = [program.add_data(t, a) for t, a in zip(tensors, arrays, strict=True)]
            self._slots.append((numbers, arrays))
        self._threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="flexlegion-data")

    def batches(self, rows: Rows, epoch: int) -> Iterator[Batch]:
        """Batches in the ring's arrays; see `Feed`."""
        parts = [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        reading: deque[list[Future[None]]] = deque()
        try:
            for number, part in enumerate(parts):
                # That batch `number` is asked for means that older ones' arrays are free again.
                for ahead in range(number + len(reading), min(number + AHEAD + 1, len(parts))):
                    reading.append(self._read(parts[ahead], ahead, epoch))
                for sample in reading.popleft():
                    sample.result()
                data, arrays = self._slots[number % len(self._slots)]
                filled = [array[: len(part)] for array in arrays]
                self._check_batch(dict(zip(self._tensors, filled, strict=True)))
                yield Batch(data, np.arange(len(part)))
        finally:
            for batch in reading:
                for sample in batch:
                    sample.cancel()

    def some(self, batches: int) -> Iterator[Batch]:
        """See `Feed`."""
        return self.batches(np.arange(batches * self.batch_size) % self.samples, 0)

    def close(self) -> None:
        """End the threads, once each is done with its sample."""
        self._threads.shutdown(cancel_futures=True)

    def _read(self, rows: Rows, number: int, epoch: int) -> list[Future[None]]:
        _, arrays = self._slots[number % len(self._slots)]
        return [
            self._threads.submit(
                # The dots make an array of a single label, too.
                self._source.read,
                int(row),
                epoch,
                [array[i, ...] for array in arrays],
            )
            for i, row in enumerate(rows)
        ]


def check_source(source: BatchSource, tensors: Sequence[Tensor]) -> None:
    """Raise `UserError` unless a source's samples have these shapes."""
    expected = tuple(tensor.shape[1:] for tensor in tensors)
    if source.shapes != expected:
        raise UserError(
            f"{source.name}: its samples have the shapes {_text(source.shapes)}, but the model's "
            f"inputs and labels {_text(expected)}"
        )
    if len(source) == 0:
        raise UserError(f"{source.name}: got no samples")


def _text(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)
