"""What ranks have to agree on: that all go on, or none, and with the same arrays."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.bindings import native
from flexlegion.machine.running import all_gather

# Batches between two agreements, at most: they wait for each other, which is to cost nothing.
MOST_BETWEEN = 64
TEXT = 1000  # bytes of a sentence that are shared
SAMPLED = 64  # rows of an array that ranks compare


def together(what: Callable[[], None]) -> None:
    """Do something on each rank. It is done on all of them when this returns; if one fails, all do.

    Raises
    ------
    UserError
        What `what` raised on this rank, or on another one.
    """
    failures = Failures()
    try:
        what()
    except UserError as e:
        failures.note(e)
    failures.raise_any()


def check_same(what: str, arrays: Iterable[npt.NDArray[Any]], sampled: bool = False) -> None:
    """Raise `UserError` if the ranks were given other arrays each, as by random numbers unseeded.

    They are one program, each of which uses the parts that its tasks need: of different arrays
    something would be trained that nobody has. Checksums are compared: of all, or if `sampled` of
    some rows of each array.
    """
    if native.running().ranks == 1:
        return
    checksum = 0
    for array in arrays:
        rows = array
        if sampled and array.ndim and len(array) > SAMPLED:
            rows = array[np.linspace(0, len(array) - 1, SAMPLED, dtype=np.int64)]
        checksum = zlib.crc32(f"{array.shape}{array.dtype}".encode(), checksum)
        checksum = zlib.crc32(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data, checksum)
    if len(set(all_gather(checksum.to_bytes(4, "little")))) > 1:
        raise UserError(
            f"{what} differ between ranks; each rank has to be given the same, so draw random "
            "numbers from the same seed"
        )


def check_same_text(what: str, text: str) -> None:
    """Raise `UserError` as `check_same` does, for something that is written out."""
    check_same(what, [np.frombuffer(text.encode(), np.uint8)])


class Failures:
    """The first failure of this rank, told when all ranks ask for it.

    Until then the rank goes on with whatever its arrays hold: ranks have to make the same calls.

    Parameters
    ----------
    gather
        Gives all ranks' bytes for each one's.
    """

    def __init__(self, gather: Callable[[bytes], list[bytes]] = all_gather) -> None:
        self._gather = gather
        self._alone = len(gather(b"")) == 1  # nothing is sent
        self._first: Exception | None = None

    def note(self, error: Exception) -> None:
        """Remember the first."""
        self._first = self._first or error

    def agree(self, batch: int) -> None:
        """Now and then, and soon after the first batch: raise what any rank noted.

        Parameters
        ----------
        batch
            How many batches were read.

        Raises
        ------
        Exception
            On the rank that noted it.
        UserError
            On the others.
        """
        due = batch % MOST_BETWEEN == 0 or batch.bit_count() == 1
        if self._alone or due:
            self.raise_any()

    def raise_any(self) -> None:
        """Raise what any rank noted; see `agree`."""
        mine = b"" if self._first is None else (str(self._first) or repr(self._first)).encode()
        theirs = [mine]
        if not self._alone and any(map(any, self._gather(bytes([bool(mine)])))):
            theirs = [text.rstrip(b"\0") for text in self._gather(mine[:TEXT].ljust(TEXT, b"\0"))]
        if self._first is not None:
            raise self._first
        for text in filter(None, theirs):
            raise UserError(text.decode(errors="ignore"))
