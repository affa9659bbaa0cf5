"""How names and values are spelt in a program: as data, whatever characters they have.

A name can come from a file that somebody else wrote. In a program it stands as a literal, in a
comment without line ends, or as an identifier of letters, digits and underscores.
"""

from __future__ import annotations

import keyword
import math
import re
import sys
from collections.abc import Container, Iterable
from typing import Any

from flexlegion.base.quoting import printable


def literal(value: Any) -> str:
    """A Python expression that gives a text, a number, None, or a tuple or list of these.

    Texts are in double quotes and of ASCII alone.
    """
    if isinstance(value, str):
        # A text with a double quote is spelt in single ones, which are escaped within it.
        body = ascii('"' + value)[2:-1]
        return '"' + body.replace("\\'", "'").replace('"', '\\"') + '"'
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, tuple):
        return sequence(map(literal, value))
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    return repr(value)


def sequence(items: Iterable[str]) -> str:
    """A tuple of expressions."""
    items = list(items)
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def comment(text: str) -> str:
    """A text that stands within a comment: of one line, without control characters, whole."""
    return printable(text, sys.maxsize)


def docstring(text: str) -> str:
    """A docstring of a text's lines."""
    lines = (comment(line).replace("\\", "\\\\") for line in text.split("\n"))
    return '"""' + "\n".join(lines).replace('"', '\\"') + '"""'


def identifiers(names: Iterable[str], taken: Container[str]) -> dict[str, str]:
    """An argument's name for each of some names, as near to it as possible.

    Characters other than letters, digits and underscores become underscores. What begins with a
    digit begins with one, and what is a word of Python's, is taken, or was given before ends with
    one or more.
    """
    given: dict[str, str] = {}
    for name in names:
        word = re.sub(r"\W", "_", name, flags=re.ASCII) or "_"
        word = f"_{word}" if word[0].isdigit() else word
        while keyword.iskeyword(word) or word in taken or word in given.values():
            word += "_"
        given[name] = word
    return given
