"""Text for language models: a stream of tokens cut into sequences; each predicts its next one."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

from flexlegion.base.errors import UserError
from flexlegion.data.dataset import Dataset, Splits, TokenDataset
from flexlegion.data.text import (
    COMPRESSED,
    END_OF_LINE,
    UNKNOWN,
    Vocabulary,
    find_text,
    read_lines,
    tokenise,
)


def load_language_model(source: Path, steps: int, vocabulary: int) -> Splits[Dataset]:
    """Read running text.

    Parameters
    ----------
    source : Path
        A folder with ``NAME.train.txt`` and, if there is a test set, ``NAME.test.txt``, of the Penn
        Treebank's format (Mikolov et al. 2010): words with blanks between them, rare ones replaced
        by ``<unk>``; or any ``.txt`` file, which is split into words and punctuation in lower case.
        In both the end of a line counts as a word ``<eos>``. They may be compressed (``.gz``,
        ``.xz``).
    steps : int
        Tokens of a sequence.
    vocabulary : int
        The largest size of the vocabulary: the unknown word, the end of line, and the most frequent
        words of the text to train on.

    Returns
    -------
    Splits
        Sequences int32 (n, steps) in the order of the text, and as labels the tokens that follow
        them. What is left over at the end is dropped.

    Raises
    ------
    UserError
        If the source is missing, damaged, or too short for one sequence.
    """
    parts = read_running_text(source)
    words = Vocabulary.of([parts[0].words], vocabulary, (UNKNOWN, END_OF_LINE))
    sets = [_sequences(part, words, steps) for part in parts]
    return Splits(sets[0], sets[1] if len(sets) > 1 else None)


class RunningText(NamedTuple):
    """A file's words, the ends of lines included."""

    path: Path
    words: list[str]


def read_running_text(source: Path) -> list[RunningText]:
    """The text to train on and, if the source has it, the one to test with.

    Parameters
    ----------
    source : Path
        As for `load_language_model`.

    Raises
    ------
    UserError
        If it is missing or damaged.
    """
    if not source.is_dir():
        return [RunningText(source, _words(source, split=True))]
    train, test = _part(source, "train"), _part(source, "test")
    if train is None:
        raise UserError(f"{source}: there is no NAME.train.txt in this folder")
    return [RunningText(path, _words(path, split=False)) for path in (train, test) if path]


def is_running_text(source: Path) -> bool:
    """Whether a file is named as plain text is, compressed or not."""
    name = source.with_suffix("") if source.suffix in COMPRESSED else source
    return name.suffix == ".txt"


def _part(folder: Path, part: str) -> Path | None:
    names = sorted(folder.glob(f"*.{part}.txt*"))
    return find_text(folder / names[0].name) if names else None


def _words(path: Path, split: bool) -> list[str]:
    lines = read_lines(path)
    ended = ((*(tokenise(line) if split else line.split()), END_OF_LINE) for line in lines)
    return list(itertools.chain.from_iterable(ended))


def _sequences(text: RunningText, words: Vocabulary, steps: int) -> TokenDataset:
    stream = words.encode(text.words)
    n = (len(stream) - 1) // steps
    if n < 1:
        raise UserError(
            f"{text.path}: this text has {len(stream)} tokens, and a sequence of {steps} steps "
            f"needs {steps + 1}"
        )
    x = stream[: n * steps].reshape(n, steps)
    y = stream[1 : n * steps + 1].reshape(n, steps)
    return TokenDataset(x, y, str(text.path), len(words), len(words), (words,))
