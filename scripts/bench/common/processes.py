"""Processes that workers are made of."""

from __future__ import annotations

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
