"""Whose code an exception comes from: this package's, or that of its user."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1])
_STANDARD = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")


def users_frame(error: BaseException, *, last: bool = False) -> traceback.FrameSummary | None:
    """The innermost frame of the user's own code that an exception passed; None: it passed none.

    Code that is neither this package's, nor Python's own, nor that of an installed package is the
    user's. Libraries raise on behalf of whoever calls them, so they are passed over.

    Parameters
    ----------
    error
        That was caught.
    last
        Whether it only counts if no frame of this package lies further in: then the user's code has
        raised the exception, or a library that it called.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_users(frame.filename):
            return frame
        if last and frame.filename.startswith(_PACKAGE):
            return None
    return None


def line_of(error: BaseException) -> str:
    """For the end of a message, `users_frame`: `` (net.py, line 12)``; else nothing."""
    frame = users_frame(error)
    return "" if frame is None else f" ({Path(frame.filename).name}, line {frame.lineno})"


def first_line(error: BaseException) -> str:
    """Of an exception's message."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else "no message"


def is_users(filename: str) -> bool:
    """Whether a file is neither this package's, nor Python's own, nor an installed package's."""
    if filename.startswith((_PACKAGE, "<")):
        return False
    return not (filename.startswith(_STANDARD) or any(part in filename for part in _INSTALLED))
