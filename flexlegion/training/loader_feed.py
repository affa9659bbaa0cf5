"""Batches of a loader of the user's (PyTorch's DataLoader, say), cut anew to the model's size."""

from __future__ import annotations

import itertools
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.machine.running import all_gather
from flexlegion.training.feeds import AHEAD, Rows
from flexlegion.training.program import Batch, Program
from flexlegion.training.trainer import BATCHES_IN_USE

Array = npt.NDArray[Any]


class LoaderFeed:
    """A loader that a thread goes through, a few batches ahead, into a ring of arrays.

    Each epoch iterates it anew. What PyTorch draws meanwhile (an order, say) follows from the
    model's seed and the epoch, so that all ranks draw the same.

    Parameters
    ----------
    program
        What runs.
    tensors
        The inputs, and the labels if there are any.
    loader
        Has a length, and batches.
    batch_size
        Samples of the model's batches; the loader's may differ.
    arrays_of
        From a batch of the loader's to arrays by input tensor; raises `UserError`.
    seed
        The model's.
    gather
        Gives all ranks' bytes for each one's.

    Raises
    ------
    UserError
        If there are no batches.
    """

    def __init__(
        self,
        program: Program,
        tensors: Sequence[Tensor],
        loader: Any,
        batch_size: int,
        arrays_of: Callable[[Any], Mapping[Tensor, Array]],
        seed: int,
        gather: Callable[[bytes], list[bytes]] = all_gather,
    ) -> None:
        if len(loader) == 0:
            raise UserError("the loader has no batches")
        self._loader, self._arrays_of, self._seed, self._gather = loader, arrays_of, seed, gather
        self._batch_size = batch_size
        # For what shows progress; nothing else has to know before the epoch is over.
        dataset: Any = getattr(loader, "dataset", None)
        known = hasattr(dataset, "__len__")
        self.samples = len(dataset) if known else len(loader) * batch_size
        self._slots: list[tuple[list[int], list[Array]]] = []
        for _ in range(AHEAD + BATCHES_IN_USE):
            arrays = [np.zeros((batch_size, *t.shape[1:]), t.host_dtype) for t in tensors]
            numbers = [program.add_data(t, a) for t, a in zip(tensors, arrays, strict=True)]
            self._slots.append((numbers, arrays))
        self._tensors = tensors
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="flexlegion-loader")

    def batches(self, _rows: Rows, epoch: int, first: int = 0) -> Iterator[Batch]:
        """All batches, in the loader's own order; see `Feed`."""
        chunks = self._chunks(epoch)
        for _ in range(first):  # only the loader knows what it would draw next
            if self._thread.submit(self._fill, self._slots[0][1], chunks).result() == 0:
                break
        reading: deque[Future[int]] = deque()
        try:
            for number in itertools.count():
                # That batch `number` is asked for means that older ones' arrays are free again.
                for ahead in range(number + len(reading), number + AHEAD + 1):
                    arrays = self._slots[ahead % len(self._slots)][1]
                    reading.append(self._thread.submit(self._fill, arrays, chunks))
                count = reading.popleft().result()
                data, arrays = self._slots[number % len(self._slots)]
                if first + number == 0:
                    self._check_first(arrays, count)
                if count == 0:
                    return
                yield Batch(data, np.arange(count))
        finally:
            for fill in reading:
                fill.cancel()
            # Nobody waits for that: a generator that an exception left is ended by whoever collects
            # it, maybe after the thread.
            with suppress(RuntimeError):
                self._thread.submit(chunks.close)

    def some(self, batches: int) -> Iterator[Batch]:
        """So many batches, from the beginning again where there are too few; see `Feed`."""
        rows = np.arange(self.samples)
        endless = (self.batches(rows, epoch) for epoch in itertools.count())
        return itertools.islice(itertools.chain.from_iterable(endless), batches)

    def close(self) -> None:
        """End the thread, once it is done with its batch."""
        self._thread.shutdown(cancel_futures=True)

    def _fill(self, arrays: Sequence[Array], chunks: Chunks) -> int:
        """Write the next samples into arrays; how many there are."""
        filled = 0
        while filled < self._batch_size:
            chunk = chunks.take(self._batch_size - filled)
            if chunk is None:
                break
            count = len(chunk[self._tensors[0]])
            for tensor, array in zip(self._tensors, arrays, strict=True):
                array[filled : filled + count] = chunk[tensor]
            filled += count
        return filled

    def _chunks(self, epoch: int) -> Chunks:
        seed = np.random.SeedSequence([self._seed, epoch]).generate_state(1)
        return Chunks(self._loader, self._arrays_of, int(seed[0]))

    def _check_first(self, arrays: Sequence[Array], count: int) -> None:
        """Raise `UserError` if there are no samples, or ranks go through others."""
        if count == 0:
            raise UserError("the loader's batches have no samples")
        checksum = 0
        for array in arrays:
            checksum = zlib.crc32(array[:count].tobytes(), checksum)
        if len(set(self._gather(checksum.to_bytes(4, "little")))) > 1:
            raise UserError(
                "the ranks' loaders begin with different batches; have them draw the same order, "
                "from one seed"
            )


class Chunks:
    """One pass over a loader, cut where it is asked for.

    Parameters
    ----------
    loader, arrays_of
        See `LoaderFeed`.
    seed
        Of PyTorch's random numbers meanwhile.
    """

    def __init__(
        self, loader: Any, arrays_of: Callable[[Any], Mapping[Tensor, Array]], seed: int
    ) -> None:
        self._loader, self._arrays_of, self._seed = loader, arrays_of, seed
        self._iterator: Iterator[Any] | None = None
        self._random: Any = None  # PyTorch's state of this pass
        self._rest: Mapping[Tensor, Array] = {}

    def take(self, most: int) -> dict[Tensor, Array] | None:
        """The next samples, at least one; None at the end."""
        while not any(len(array) for array in self._rest.values()):
            try:
                batch = self._next()
            except StopIteration:
                return None
            self._rest = self._arrays_of(batch)
        chunk = {tensor: array[:most] for tensor, array in self._rest.items()}
        self._rest = {tensor: array[most:] for tensor, array in self._rest.items()}
        return chunk

    def close(self) -> None:
        """Let go of the loader's iterator."""
        self._iterator = None

    def _next(self) -> Any:
        torch: Any = sys.modules.get("torch")  # a loader of PyTorch's has imported it
        if torch is None:
            return self._of_iterator()
        before = torch.get_rng_state()
        if self._random is None:
            torch.default_generator.manual_seed(self._seed)
        else:
            torch.set_rng_state(self._random)
        try:
            return self._of_iterator()
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(before)

    def _of_iterator(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._loader)
        return next(self._iterator)
