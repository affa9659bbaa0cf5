"""Where batches come from: arrays in memory, or a source that is read ahead of its use."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.data.sources import BatchSource
from flexlegion.graph.tensor import Tensor
from flexlegion.machine.running import all_gather
from flexlegion.training.agreement import Failures
from flexlegion.training.program import Batch, Program
from flexlegion.training.trainer import BATCHES_IN_USE, batches

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]

# Batches that are read before they are asked for: one hides the time that reading takes, a second
# one its ups and downs.
AHEAD = 2


class Feed(Protocol):
    """Data that a program can run over, any number of times."""

    samples: int  # about so many, if nobody can know

    def batches(self, rows: Rows, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Batches of these samples, in their order, from batch `first` on.

        A loader's are all its samples, in its own order.
        """

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

    def batches(self, rows: Rows, _epoch: int, first: int = 0) -> Iterator[Batch]:
        """Rows of the arrays; see `Feed`."""
        return batches(rows[first * self.batch_size :], self.batch_size, self.data)

    def some(self, batches: int) -> Iterator[Batch]:
        """See `Feed`."""
        return self.batches(np.arange(batches * self.batch_size) % self.samples, 0)

    def close(self) -> None:
        """Nothing to end."""


class SourceFeed:
    """A source that threads read, a few batches ahead, into a ring of arrays.

    A rank reads what its own tasks stage, and of other samples the labels that it counts. The
    arrays of a batch are used again once its iteration has ended; see `BATCHES_IN_USE`.

    Parameters
    ----------
    program
        What runs.
    inputs, labels
        Their tensors, in the source's order.
    source
        The data.
    batch_size
        Samples a batch.
    check
        Raises `UserError` if something is wrong with a batch's arrays.
    gather
        Gives all ranks' bytes for each one's.

    Raises
    ------
    UserError
        If the source does not fit the inputs.
    """

    def __init__(
        self,
        program: Program,
        inputs: Sequence[Tensor],
        labels: Sequence[Tensor],
        source: BatchSource,
        batch_size: int,
        check: Callable[[dict[Tensor, Array]], None],
        gather: Callable[[bytes], list[bytes]] = all_gather,
    ) -> None:
        self.samples = len(source)
        self.batch_size = batch_size
        self._tensors = [*inputs, *labels]
        self._source, self._check_batch, self._gather = source, check, gather
        check_source(source, self._tensors)
        # Positions in a batch of which this rank needs the whole sample, or its labels. How many
        # class numbers count decides what each adds to the loss (`Program.step`).
        self._whole = _here(program, inputs, batch_size)
        self._labels = _here(program, labels, batch_size)
        self._labels |= any(label.dtype == "int32" for label in labels)
        self._needed = [self._whole] * len(inputs) + [self._whole | self._labels] * len(labels)
        ring = min(AHEAD + BATCHES_IN_USE, -(-self.samples // batch_size))
        self._slots: list[tuple[list[int], list[Array]]] = []
        for _ in range(ring):
            arrays = arrays_for(source, self._tensors, batch_size)
            numbers = [
                program.add_data(tensor, array, values)
                for tensor, array, values in zip(
                    self._tensors, arrays, source.byte_values, strict=True
                )
            ]
            self._slots.append((numbers, arrays))
        self._workers = len(os.sched_getaffinity(0))
        self._threads = ThreadPoolExecutor(self._workers, thread_name_prefix="flexlegion-data")

    def batches(self, rows: Rows, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Batches in the ring's arrays; see `Feed`."""
        rows = rows[first * self.batch_size :]
        parts = [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        reading: deque[list[Future[None]]] = deque()
        failures = Failures(self._gather)
        try:
            for number, part in enumerate(parts):
                # That batch `number` is asked for means that older ones' arrays are free again.
                for ahead in range(number + len(reading), min(number + AHEAD + 1, len(parts))):
                    reading.append(self._read(parts[ahead], ahead, epoch))
                data, arrays = self._slots[number % len(self._slots)]
                batch = reading.popleft()
                try:
                    for some in batch:
                        some.result()
                    self._check(arrays, len(part))
                except Exception as error:
                    failures.note(error)
                    wait(batch)
                    for array in arrays:  # what is wrong there must not reach any task
                        array[...] = 0
                failures.agree(number + 1)
                yield Batch(data, np.arange(len(part)))
            failures.raise_any()
        finally:
            for batch in reading:
                for some in batch:
                    some.cancel()

    def some(self, batches: int) -> Iterator[Batch]:
        """See `Feed`."""
        return self.batches(np.arange(batches * self.batch_size) % self.samples, 0)

    def close(self) -> None:
        """End the threads, once each is done with its samples."""
        self._threads.shutdown(cancel_futures=True)

    def _read(self, rows: Rows, number: int, epoch: int) -> list[Future[None]]:
        """Have threads read what this rank needs of a batch."""
        _, arrays = self._slots[number % len(self._slots)]

        def read(positions: Rows) -> None:
            for i in positions:
                read_one = self._source.read if self._whole[i] else self._source.read_labels
                # The dots make an array of a single label, too.
                read_one(int(rows[i]), epoch, [array[i, ...] for array in arrays])

        positions = np.flatnonzero((self._whole | self._labels)[: len(rows)])
        # Samples differ in what they take, so a thread gets several portions.
        portions = max(1, min(len(positions), 4 * self._workers))
        return [self._threads.submit(read, some) for some in np.array_split(positions, portions)]

    def _check(self, arrays: Sequence[Array], count: int) -> None:
        """Check tokens and class numbers that this rank has read of a batch of so many samples."""
        read = {
            tensor: array[:count][needed[:count]]
            for tensor, array, needed in zip(self._tensors, arrays, self._needed, strict=True)
            if tensor.dtype == "int32"
        }
        self._check_batch({tensor: array for tensor, array in read.items() if len(array)})


def _here(program: Program, tensors: Sequence[Tensor], batch_size: int) -> npt.NDArray[np.bool_]:
    """Which samples of a batch this rank stages of any of the tensors."""
    here = np.zeros(batch_size, np.bool_)
    for tensor in tensors:
        here |= program.staged_here(tensor)
    return here


def arrays_for(source: BatchSource, tensors: Sequence[Tensor], rows: int) -> list[Array]:
    """Arrays that a source can write so many samples into."""
    return [
        np.zeros((rows, *tensor.shape[1:]), tensor.host_dtype if values is None else np.uint8)
        for tensor, values in zip(tensors, source.byte_values, strict=True)
    ]


def check_source(source: BatchSource, tensors: Sequence[Tensor]) -> None:
    """Raise `UserError` unless a source's samples have these shapes."""
    expected = tuple(tensor.shape[1:] for tensor in tensors)
    if source.shapes != expected:
        raise UserError(
            f"{source.name}: its samples have the shapes {_text(source.shapes)}, but the model's "
            f"inputs and labels {_text(expected)}"
        )
    for tensor, values in zip(tensors, source.byte_values, strict=True):
        if values is not None and tensor.host_dtype != "float32":
            raise UserError(
                f"{source.name}: bytes can stand for real numbers, not for '{tensor.name}'"
            )
    if len(source) == 0:
        raise UserError(f"{source.name}: got no samples")


def _text(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)
