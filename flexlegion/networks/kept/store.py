"""The folder of kept imports: one file for each, JSON below a line with its digest.

Any number of processes may use it at a time. A file appears when it is complete, and one that is
not what its first line says is no entry. The folder has a most size; what was not used for the
longest time goes first.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from flexlegion.base.cache import cache_folder
from flexlegion.base.errors import UserError
from flexlegion.base.files import open_file, read_at_most, replacing

MOST_BYTES = 256 << 20  # of all entries
_MOST_OF_ONE = 32 << 20
_FORM = 1  # of entries; another one is another key


def key_of(facts: Any) -> str:
    """The key of an import, of all that decides what it makes and can be known before."""
    text = json.dumps([_FORM, facts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def read(key: str) -> dict[str, Any] | None:
    """The entry of a key; None: there is none, or it is damaged."""
    try:
        path = _path(key)
        with open_file(path) as file:
            content = read_at_most(file, _MOST_OF_ONE)
        os.utime(path)
    except (OSError, RuntimeError):
        return None
    digest, _, text = (content or b"").partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        return None
    entry: dict[str, Any] = json.loads(text)
    return entry


def write(key: str, entry: dict[str, Any]) -> None:
    """Keep an entry, in place of others that were not used for long if there are too many.

    Raises
    ------
    OSError
        If it is too large, or cannot be written.
    """
    text = json.dumps(entry, separators=(",", ":")).encode()
    if len(text) > _MOST_OF_ONE - 100:
        raise OSError("it is too large")
    try:
        path = _path(key)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path, "import") as file:
            file.write(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
    except (UserError, RuntimeError) as e:
        raise OSError(str(e)) from None
    _remove_old(path.parent)


def _path(key: str) -> Path:
    return cache_folder() / "imports" / f"{key}.json"


def _remove_old(folder: Path) -> None:
    """Remove what was used least recently, as far as all together are too large."""
    with suppress(OSError):
        states = [(path.stat(), path) for path in folder.glob("*.json")]
        size = sum(state.st_size for state, _ in states)
        for state, path in sorted(states, key=lambda one: one[0].st_mtime_ns):
            if size <= MOST_BYTES:
                return
            path.unlink(missing_ok=True)
            size -= state.st_size
