"""Records of shown links with numbers and categories, and whether they were clicked.

The form is that of Criteo's data (the Kaggle Display Advertising Challenge, and the 1 TB Click
Logs): a line a sample, with tabs between a label, whole numbers and categories.
"""

from __future__ import annotations

import math
import re
import zlib
from pathlib import Path

import numpy as np

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import printable
from flexlegion.data.dataset import Dataset, Splits
from flexlegion.data.text import find_text, read_lines

_WHOLE = re.compile(r"-?[0-9]{1,18}")


def load_clicks(source: Path, numbers: int, fields: int, rows: int) -> Splits[Dataset]:
    """Read labelled records.

    Parameters
    ----------
    source : Path
        A ``.tsv`` or ``.txt`` file of lines ``label<TAB>number...<TAB>category...``, or a folder
        with ``train.tsv`` and, if there is a test set, ``test.tsv``; they may be compressed
        (``.gz``, ``.xz``). A label is 0 or 1, a number whole, a category any text; numbers and
        categories may be missing, which leaves nothing between two tabs.
    numbers, fields : int
        How many numbers and categories a line has: 13 and 26 in Criteo's data.
    rows : int
        Each category becomes a number below this, by a hash of its field and text.

    Returns
    -------
    Splits
        `x` are the numbers, float32 (n, numbers), and the categories, int32 (n, fields); `y` are
        the labels, float32 (n, 1). A number v becomes log(1 + v), one that is missing or negative
        0; a missing category is one of its own.

    Raises
    ------
    UserError
        If the source is missing, damaged or empty.
    """
    if not source.is_dir():
        return Splits(_read(source, numbers, fields, rows), None)
    train, test = (find_text(source / f"{part}.tsv") for part in ("train", "test"))
    if train is None:
        raise UserError(f"{source}: there is no train.tsv in this folder")
    held_out = None if test is None else _read(test, numbers, fields, rows)
    return Splits(_read(train, numbers, fields, rows), held_out)


def _read(path: Path, numbers: int, fields: int, rows: int) -> Dataset:
    lines = read_lines(path)
    if not lines:
        raise UserError(f"{path}: there are no records in this file")
    labels = np.zeros((len(lines), 1), np.float32)
    counts = np.zeros((len(lines), numbers), np.float32)
    categories = np.zeros((len(lines), fields), np.int32)
    # Most texts come again and again.
    hashes: list[dict[str, int]] = [{} for _ in range(fields)]
    for number, line in enumerate(lines):
        parts = line.split("\t")
        if len(parts) != 1 + numbers + fields:
            raise UserError(
                f"{path}: line {number + 1} has {len(parts)} values with tabs between them, but a "
                f"label, {numbers} numbers and {fields} categories are {1 + numbers + fields}"
            )
        if parts[0] not in ("0", "1"):
            raise _wrong(path, number, "label", parts[0], "0 or 1")
        labels[number] = parts[0] == "1"
        counts[number] = values = [_number(part) for part in parts[1 : numbers + 1]]
        if math.isnan(sum(values)):
            wrong = next(part for part in parts[1:] if math.isnan(_number(part)))
            raise _wrong(path, number, "number", wrong, "a whole number, or missing")
        for field, text in enumerate(parts[numbers + 1 :]):
            known = hashes[field]
            if text not in known:
                known[text] = zlib.crc32(f"{field}:{text}".encode()) % rows
            categories[number, field] = known[text]
    return Dataset((np.log1p(np.maximum(counts, 0)), categories), labels, str(path))


def _number(text: str) -> float:
    """A number; 0 if it is missing, nan if the text is none."""
    if not text:
        return 0.0
    return float(text) if _WHOLE.fullmatch(text) else math.nan


def _wrong(path: Path, number: int, what: str, text: str, wanted: str) -> UserError:
    return UserError(
        f"{path}: line {number + 1} has the {what} '{printable(text[:40])}', which is not {wanted}"
    )
