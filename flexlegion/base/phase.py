"""What a command is about to do, on a terminal, until it has something to show.

Imports, a model's code and the preparation of a simulation take a second or more, in which nobody
should have to guess whether anything happens. The line is gone with whatever is printed next.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

_ERASED = "\x1b[K"


class _Line:
    """The one line, on the stream that it is shown on; None: nothing is shown."""

    stream: TextIO | None = None
    visible = False
    bars = 0  # that are drawn at present, and say by themselves what is done


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream leads to a terminal; None, a closed one, does not."""
    return stream is not None and not stream.closed and stream.isatty()


def shows_bars(stream: TextIO | None) -> bool:
    """Whether a stream leads to a terminal that can draw over its lines."""
    return is_terminal(stream) and os.environ.get("TERM") not in ("dumb", "unknown")


def begin_phases() -> None:
    """From now on, show phases, if standard error leads to a terminal; for commands alone."""
    _Line.stream = sys.stderr if shows_bars(sys.stderr) else None


def phase(text: str) -> None:
    """Say what is being done now, in place of what was said before."""
    if _Line.stream is not None and _Line.bars == 0:
        # The cursor stays at the beginning, so that other output goes over it in any case.
        _write(f"{text[:70]} ...{_ERASED}\r")
        _Line.visible = True


def end_phase() -> None:
    """Take the line away: something is printed now."""
    if _Line.visible and _Line.stream is not None:
        _Line.visible = False
        _write(_ERASED)


def _write(text: str) -> None:
    assert _Line.stream is not None
    try:
        _Line.stream.write(text)
        _Line.stream.flush()
    except OSError:  # the terminal is gone
        _Line.stream = None


def begin_bar() -> None:
    """A bar is drawn from now on, in place of phases."""
    end_phase()
    _Line.bars += 1


def end_bar() -> None:
    """It is gone."""
    _Line.bars -= 1
