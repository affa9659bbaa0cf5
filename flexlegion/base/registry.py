"""Names under which strategies and searches are found, those of users included."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Generic, TypeVar

from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import unknown

Entry = TypeVar("Entry")

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class Registry(Generic[Entry]):
    """Entries by name, in the order in which they were registered.

    Parameters
    ----------
    what
        What an entry is, for messages: ``"strategy"``.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._entries: dict[str, Entry] = {}
        self._own: set[str] = set()

    def add(self, name: str, entry: Entry, *, own: bool = False) -> None:
        """Register an entry.

        Parameters
        ----------
        name
            Lower-case letters, digits, ``-`` and ``_``.
        entry
            What the name stands for.
        own
            Whether it is one of flexlegion's own, which no other replaces; a user's is replaced
            when its module is loaded again.

        Raises
        ------
        UserError
            If the name is no such name, or taken.
        """
        if not _NAME.fullmatch(name):
            raise UserError(
                f"a {self.what}'s name has to be lower-case letters, digits, - and _, but is "
                f"'{name[:40]}'"
            )
        if name in self._own:
            raise UserError(f"the {self.what} '{name}' comes with flexlegion; choose another name")
        self._entries[name] = entry
        if own:
            self._own.add(name)

    @property
    def others(self) -> list[str]:
        """Names of the entries that are not flexlegion's own."""
        return [name for name in self._entries if name not in self._own]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __getitem__(self, name: str) -> Entry:
        """The entry of that name.

        Raises
        ------
        UserError
            If there is none.
        """
        if name not in self._entries:
            raise unknown(self.what, name, self._entries)
        return self._entries[name]
