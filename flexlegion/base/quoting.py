"""What people are shown of values that others wrote: no control characters, and never endless.

A file decides what its names are. Sent to a terminal as they stand, they could move the cursor,
clear the screen, or turn the order of what follows them.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from flexlegion.base.phase import end_phase

MAX_LINE = 1900  # characters of a line for people; a message and what a shell adds stay below 2,000
MAX_VALUE = 60  # of a value within a sentence

_PLAIN = re.compile(r"[ -~]*")


def printable(text: str, longest: int = MAX_LINE) -> str:
    """Text as one line that is safe to print.

    What is not printable (control characters, line ends, marks of writing direction, halves of
    characters) is written as an escape, ``\\x1b``. Of a line that is too long the middle is left
    out, because the beginning of a sentence says where, and its end what would be right.

    Parameters
    ----------
    text
        Any.
    longest
        How many characters to return at most.
    """
    if len(text) > longest:
        # Before the escapes, which would take long for millions of characters.
        text = _middle_left_out(text, longest)
    text = escaped(text)
    return text if len(text) <= longest else _middle_left_out(text, longest)


def escaped(text: str) -> str:
    """All of a text as one line, with an escape for each character that is not printable."""
    if _PLAIN.fullmatch(text) or text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Several lines, each as `printable` has it."""
    return "\n".join(map(printable, text.split("\n")))


def say(text: str, *, beside: bool = False) -> None:
    """Print lines; nothing else in this package prints text with names in it.

    `beside` the result: to standard error.
    """
    end_phase()
    print(printable_lines(text), file=sys.stderr if beside else sys.stdout, flush=True)


def note(text: str) -> None:
    """Tell the user something beside the result."""
    say(f"note: {printable(text)}", beside=True)


def warn(text: str) -> None:
    """Tell the user that something is not as it should be."""
    say(f"warning: {printable(text)}", beside=True)


def shown(value: Any) -> str:
    """A parsed JSON value for a message: as it stands in the file, cut where it is long."""
    text = json.dumps(value[:MAX_VALUE] if isinstance(value, str | list) else value)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 3]}..."


def _middle_left_out(text: str, longest: int) -> str:
    end = longest // 3
    return f"{text[: longest - end - 5]} ... {text[len(text) - end :]}"


def described(value: Any) -> str:
    """A value of any type in a sentence: short ones as they are written, others by their types."""
    if isinstance(value, str | int | float | None):
        try:
            return printable(repr(value), MAX_VALUE)
        except ValueError:  # Python does not write out numbers of thousands of digits
            return "a number of thousands of digits"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {printable(str(value.__name__), MAX_VALUE)}"
    name = printable(type(value).__name__, MAX_VALUE)
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
