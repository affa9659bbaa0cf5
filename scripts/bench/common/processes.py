"""Processes that workers are made of."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """A process and all that it started; legate's child has a session and group of its own."""
    found, new = [], [pid]
    while new:
        parent = new.pop()
        found.append(parent)
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                new += map(int, children.read_text().split())
            except OSError:  # ended meanwhile
                continue
    return found


@contextmanager
def turn(file: str | None) -> Iterator[None]:
    """While it lasts, no other process that was told of this file has its turn."""
    if file is None:
        yield
        return
    with Path(file).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
