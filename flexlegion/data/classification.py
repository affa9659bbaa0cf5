"""Text classification: labelled texts, as sequences of tokens that all have the same length."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flexlegion.base.errors import UserError
from flexlegion.data.dataset import Dataset, Splits, TokenDataset
from flexlegion.data.text import (
    COMPRESSED,
    PAD,
    UNKNOWN,
    Tokens,
    Vocabulary,
    find_text,
    read_lines,
    tokenise,
)

_TABLES = (".tsv", ".csv")
_HEADER = ("label", "text")


class Text(NamedTuple):
    """A text with the name of its class."""

    label: str
    text: str


def is_table(path: Path) -> bool:
    """Whether a file is named as tables of labelled texts are, compressed or not."""
    name = path.with_suffix("") if path.suffix in COMPRESSED else path
    return name.suffix in _TABLES


def load_classification(source: Path, steps: int, vocabulary: int) -> Splits[Dataset]:
    """Read labelled texts.

    Parameters
    ----------
    source : Path
        One of

        - a ``.tsv`` file with a line a text, ``label<TAB>text``, or a ``.csv`` file with the
          columns label and text (a first line ``label,text`` is none);
        - a folder with ``train.tsv`` and, if there is a test set, ``test.tsv`` (or ``.csv``);
        - a folder with a folder a class, each with a ``.txt`` file a text; or with folders
          ``train`` and ``test`` of that form.

        Tables may be compressed (``.gz``, ``.xz``).
    steps : int
        Tokens that each text is to have. Longer ones lose their end; before shorter ones there is
        padding, as a recurrent classifier reads the last state.
    vocabulary : int
        The largest size of the vocabulary: padding, the unknown word, and the most frequent words
        of the texts to train on.

    Returns
    -------
    Splits
        Classes are numbered in the order of their names.

    Raises
    ------
    UserError
        If the source is missing, damaged or empty, or has classes to test with that it does not
        train.
    """
    train, test = _read(source)
    names = sorted({text.label for text in train})
    words = Vocabulary.of((tokenise(t.text) for t in train), vocabulary, (PAD, UNKNOWN))
    for text in test or ():
        if text.label not in names:
            raise UserError(
                f"{source}: the class {text.label[:60]} of a text to test with has no texts to "
                "train on"
            )

    def dataset(texts: Sequence[Text], name: str) -> TokenDataset:
        x = np.stack([_padded(words.encode(tokenise(t.text)), steps) for t in texts])
        y = np.array([names.index(t.label) for t in texts], np.int32)
        return TokenDataset(x, y, name, len(names), len(words), (words,))

    held_out = None if test is None else dataset(test, f"{source} (test)")
    return Splits(dataset(train, str(source)), held_out)


def _padded(tokens: Tokens, steps: int) -> Tokens:
    kept = tokens[:steps]
    return np.concatenate([np.zeros(steps - len(kept), np.int32), kept])  # PAD is number 0


def _read(source: Path) -> tuple[list[Text], list[Text] | None]:
    if not source.is_dir():
        return _read_table(source), None
    for ending in _TABLES:
        train, test = (find_text(source / f"{part}{ending}") for part in ("train", "test"))
        if train is not None:
            return _read_table(train), None if test is None else _read_table(test)
    divided = (source / "train").is_dir()
    texts = _read_folders(source / "train" if divided else source)
    has_test = divided and (source / "test").is_dir()
    return texts, _read_folders(source / "test") if has_test else None


def _read_table(path: Path) -> list[Text]:
    lines = read_lines(path)
    separated = ".csv" in path.suffixes
    if separated:
        table = csv.reader(lines)
        try:
            rows = list(table)
        except csv.Error as e:
            raise UserError(
                f"{path}: line {table.line_num} cannot be read as one of a .csv file ({e})"
            ) from None
    else:
        rows = [line.split("\t", 1) for line in lines if line]
    if separated and rows and tuple(rows[0]) == _HEADER:
        rows = rows[1:]
    for number, row in enumerate(rows, 1):
        if len(row) != 2 or not row[0].strip():
            between = "a comma" if separated else "a tab"
            raise UserError(
                f"{path}: text {number} is not a label and a text with {between} between them"
            )
    if not rows:
        raise UserError(f"{path}: there are no texts in this file")
    return [Text(label.strip(), text) for label, text in rows]


def _read_folders(root: Path) -> list[Text]:
    files = sorted(path for path in root.glob("*/*.txt") if path.is_file())
    if not files:
        raise UserError(
            f"{root}: there is neither train.tsv nor train.csv here, nor are there classes, which "
            "are folders with .txt files"
        )
    return [Text(path.parent.name, "\n".join(read_lines(path))) for path in files]
