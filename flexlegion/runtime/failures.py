"""Failures of a rank's own reading, of which all ranks have to hear: they end together, or not."""

from __future__ import annotations

from collections.abc import Callable

from flexlegion.errors import UserError
from flexlegion.machine.running import all_gather

# Batches between two agreements, at most: they wait for each other, which is to cost nothing.
MOST_BETWEEN = 64
TEXT = 1000  # bytes of a sentence that are shared


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
