"""Paragraphs, pairs and tables: what a result shows, as text, and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from flexlegion.console.text import pairs, table, wrapped

_CELL = "padding:2px 12px 2px 0;border:none;text-align:"


@dataclass(frozen=True)
class Pairs:
    """Names, and a value for each."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """A table.

    Parameters
    ----------
    columns
        Their titles.
    rows
        A text for each column.
    texts
        Which columns hold texts; the others hold numbers, which end at the right.
    note
        What is said directly below.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: Sequence[int] = (0,)
    note: str = ""


Block = str | Pairs | Table


def as_text(blocks: Iterable[Block]) -> str:
    """The blocks with an empty line between each two, without an end of the last line."""
    return "\n\n".join(_text(block).rstrip("\n") for block in blocks)


def as_html(blocks: Iterable[Block]) -> str:
    """The blocks as paragraphs and tables."""
    return "\n".join(map(_html, blocks))


def _text(block: Block) -> str:
    if isinstance(block, str):
        return wrapped(block)
    if isinstance(block, Pairs):
        return pairs(block.rows)
    return table(block.columns, block.rows, block.texts) + wrapped(block.note)


def _html(block: Block) -> str:
    if isinstance(block, str):
        return f"<p>{escape(block)}</p>".replace("\n", "<br>")
    if isinstance(block, Pairs):
        return f"<table>{''.join(_row(row, 'td', (0, 1)) for row in block.rows)}</table>"
    head = _row(block.columns, "th", block.texts)
    body = "".join(_row(row, "td", block.texts) for row in block.rows)
    note = f"\n<p>{escape(block.note)}</p>" if block.note else ""
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>{note}"


def _row(cells: Sequence[str], tag: str, texts: Sequence[int]) -> str:
    parts = [
        f'<{tag} style="{_CELL}{"left" if i in texts else "right"}">{escape(cell)}</{tag}>'
        for i, cell in enumerate(cells)
    ]
    return f"<tr>{''.join(parts)}</tr>"
