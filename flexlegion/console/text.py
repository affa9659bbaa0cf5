"""Text for people: tables that fit their terminal, and quantities with units."""

from __future__ import annotations

import io
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from flexlegion.base.phase import is_terminal
from flexlegion.base.quoting import printable, printable_lines

if TYPE_CHECKING:  # rich takes a tenth of a second to import, which help and mistakes need not wait
    from rich.console import RenderableType

WHOLE = 10_000  # columns of what goes into a file or a pipe, for programs: nothing is wrapped there
_NARROWEST = 20
_BETWEEN = 3  # columns between those of a table


def line_width() -> int | None:
    """Columns of the terminal that standard output goes to; None: it goes elsewhere."""
    if not is_terminal(sys.stdout):
        return None
    return max(shutil.get_terminal_size().columns, _NARROWEST)


def printed(what: RenderableType, width: int | None = None) -> str:
    """What rich would print without colours; lines end at their text.

    Parameters
    ----------
    what
        A table or a tree, for example.
    width
        Columns; by default those of the terminal, or no limit where there is none.
    """
    from rich.console import Console

    out = _Lines()
    width = width or line_width() or WHOLE
    Console(file=out, width=width, no_color=True, force_terminal=False).print(what)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


class _Lines(io.StringIO):
    """Text that standard output will get: rich draws lines by characters that it can show."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(sys.stdout, "encoding", None) or "utf-8"


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    texts: Sequence[int] = (0,),
    width: int | None = None,
) -> str:
    """A table, or where a terminal is too narrow for it, a paragraph for each row.

    Parameters
    ----------
    columns
        Their titles.
    rows
        A text for each column.
    texts
        Which columns hold texts, which may be wrapped; the others hold numbers, which end at the
        right.
    width
        See `printed`.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    width = width or line_width() or WHOLE
    cells = [[printable_lines(cell) for cell in row] for row in rows]
    natural, least = [], []
    for number, column in enumerate(zip(columns, *cells, strict=True)):
        lines = [line for cell in column for line in cell.splitlines()]
        natural.append(max(map(len, lines), default=1))
        words = lines
        if number in texts:  # which break after hyphens, too
            words = [word for line in lines for word in re.split(r"\s+|(?<=-)", line)]
        least.append(max(map(len, words), default=1))
    widths = _narrowed(natural, least, width - _BETWEEN * (len(columns) - 1))
    if widths is None:
        return "\n".join(pairs(zip(columns, row, strict=True), width) for row in cells)
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, column_width in enumerate(widths):
        result.add_column(
            columns[number],
            justify="left" if number in texts else "right",
            width=column_width,
            overflow="fold",
        )
    for row in cells:
        broken = [
            _broken(cell, widths[number]) if number in texts else cell
            for number, cell in enumerate(row)
        ]
        result.add_row(*map(Text, broken))
    return printed(result, width)


def _broken(text: str, width: int) -> str:
    """A text in lines of so many columns, which end after words or hyphens."""
    return "\n".join("\n".join(textwrap.wrap(line, width)) for line in text.splitlines())


def _narrowed(natural: Sequence[int], least: Sequence[int], total: int) -> list[int] | None:
    """Widths of columns that fit, the widest narrowed first; None: they cannot."""
    if sum(least) > total:
        return None
    widths = list(natural)
    while sum(widths) > total:
        wide = [i for i in range(len(widths)) if widths[i] > least[i]]
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def pairs(rows: Iterable[tuple[str, str]], width: int | None = None) -> str:
    """Lines of a name and a value, the values in one column; `width` as of `printed`."""
    lines = list(rows)
    first = max((len(name) for name, _ in lines), default=0)
    return "".join(
        wrapped(
            f"{name:{first}}  {printable(', '.join(value.splitlines()))}".rstrip(), width, first + 2
        )
        + "\n"
        for name, value in lines
    )


def wrapped(text: str, width: int | None = None, indent: int = 0) -> str:
    """Text whose lines fit; those that continue one are indented.

    Parameters
    ----------
    text
        Lines.
    width
        See `printed`.
    indent
        Columns.
    """
    width = width or line_width()
    if width is None:
        return text
    later = " " * (indent if indent < width // 2 else 2)
    return "\n".join(
        line if len(line) <= width else "\n".join(_folded(line, width, later))
        for line in text.split("\n")
    )


def _folded(line: str, width: int, later: str) -> list[str]:
    """The lines that one becomes."""
    fill = textwrap.TextWrapper(
        width, subsequent_indent=later, break_on_hyphens=False, break_long_words=False
    )
    fill.replace_whitespace = fill.expand_tabs = False
    return fill.wrap(line)


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
