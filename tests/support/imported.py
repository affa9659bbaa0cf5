"""What commands import, in a process in which other tests have imported more."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_legate() -> Iterator[None]:
    """While this is entered, nothing imports legate, be it that another test already has."""
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if _is_legate(name)}
    try:
        yield
        assert not any(map(_is_legate, sys.modules))
    finally:
        sys.modules.update(before)


def _is_legate(module: str) -> bool:
    return module.partition(".")[0] == "legate"
