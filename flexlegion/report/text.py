"""Text for people: tables, and quantities with units."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from flexlegion.quoting import printable

WIDTH = 160  # of tables, wherever they are printed to


def printed(what: RenderableType, width: int = WIDTH) -> str:
    """What rich would print on a terminal of that width, without colours; lines end at their text.

    Parameters
    ----------
    what
        A table or a tree, for example.
    width
        Columns.
    """
    out = io.StringIO()
    Console(file=out, width=width).print(what)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[int] = (0,)
) -> str:
    """A table.

    Parameters
    ----------
    columns
        Their titles.
    rows
        A text for each column.
    texts
        Which columns hold texts; the others hold numbers, which end at the right.
    """
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, column in enumerate(columns):
        result.add_column(column, justify="left" if number in texts else "right", overflow="fold")
    for row in rows:
        result.add_row(*(Text(printable(cell)) for cell in row))
    return printed(result)


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Lines of a name and a value, the values in one column."""
    lines = list(rows)
    width = max((len(name) for name, _ in lines), default=0)
    return "".join(f"{name:{width}}  {printable(value)}".rstrip() + "\n" for name, value in lines)


def duration(ns: int) -> str:
    """Four digits and a unit: ``392.0 ms``."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            return f"{sign}{_digits(ns / size)} {unit}"
    return f"{sign}{ns} ns"


def volume(size: int) -> str:
    """Bytes that move, four digits in powers of ten as links' rates are: ``16.21 GB``."""
    sign, size = ("-", -size) if size < 0 else ("", size)
    for unit, one in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= one:
            return f"{sign}{_digits(size / one)} {unit}"
    return f"{sign}{size} B"


def memory(size: int) -> str:
    """Bytes that lie in a memory: ``1.525 GiB``."""
    for unit, one in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= one:
            return f"{_digits(size / one)} {unit}"
    return f"{size} B"


def names(numbered: Sequence[str], length: int = 60) -> str:
    """Devices in their order, runs joined: ``gpu:0 to gpu:3, gpu:8``; cut where it gets long."""
    runs: list[list[str]] = []
    for name in numbered:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    parts: list[str] = []
    for run in runs:
        parts += run if len(run) < 3 else [f"{run[0]} to {run[-1]}"]
    text = ", ".join(parts)
    return text if len(text) <= length else f"{text[: length - 3]}..."


def count(number: int, what: str) -> str:
    """``1 operator``, ``1,234 operators``."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def _follows(before: str, name: str) -> bool:
    ends = [re.fullmatch(r"(.*\D)([0-9]{1,9})(/.*)?", text) for text in (before, name)]
    a, b = ends
    if a is None or b is None:
        return False
    return (a[1], a[3]) == (b[1], b[3]) and int(a[2]) + 1 == int(b[2])


def _digits(value: float) -> str:
    for decimals, least in ((0, 1000), (1, 100), (2, 10)):
        if value >= least:
            return f"{value:,.{decimals}f}"
    return f"{value:.3f}"


def common_name(operators: Sequence[str]) -> str:
    """A short name for several operators: the first, with what differs between all as ``*``.

    Examples
    --------
    >>> common_name(["encoder1.0", "encoder1.17"])
    'encoder1.*'
    """
    if len(set(operators)) == 1:
        return operators[0]
    split = [re.split(r"([._:/-])", name) for name in operators]
    if len({len(parts) for parts in split}) == 1:
        columns = list(zip(*split, strict=True))
        parts = [column[0] if len(set(column)) == 1 else _stem(column) for column in columns]
        if any(part[0].isalnum() for part in parts if part):
            return "".join(parts)
    return f"{operators[0]} and {len(operators) - 1} more"


def _stem(words: Sequence[str]) -> str:
    """What all words begin with, and a star."""
    shortest, longest = min(words), max(words)
    length = 0
    for a, b in zip(shortest, longest, strict=False):
        if a != b or a.isdecimal():
            break
        length += 1
    return f"{shortest[:length]}*"


def consecutive(values: Sequence[object]) -> list[tuple[int, int]]:
    """Index ranges [start, end) of runs of equal values."""
    starts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(values)) if a != b)]
    return list(zip(starts, [*starts[1:], len(values)], strict=True)) if values else []
