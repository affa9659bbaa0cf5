"""Parallel corpora: sentences of one language and their translations, line by line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flexlegion.base.errors import UserError
from flexlegion.data.dataset import IGNORED, Dataset, Splits, TokenDataset
from flexlegion.data.text import (
    END,
    PAD,
    START,
    UNKNOWN,
    Tokens,
    Vocabulary,
    find_text,
    read_lines,
    tokenise,
)

SPECIALS = (PAD, UNKNOWN, START, END)


class Pair(NamedTuple):
    """A sentence's tokens, its translation's, and the translation as its file has it."""

    source: list[str]
    target: list[str]
    text: str


def load_parallel(
    base: str, languages: tuple[str, str], steps: int, vocabulary: int
) -> Splits[Dataset]:
    """Read two files with a sentence a line, such as ``corpus/train.en`` and ``corpus/train.de``.

    Sentences are split into words and punctuation as they are written. A target ends with ``</s>``.
    Pairs of which one side has more than `steps` tokens, or none, are left out.

    Parameters
    ----------
    base : str
        The files' name up to the language, ``corpus/train``; they may be compressed (``.gz``,
        ``.xz``). Where its last part is ``train``, files ``corpus/test.…`` are the test set.
    languages : tuple of str
        Names of source and target: the files' endings.
    steps : int
        Tokens that each sequence is to have; behind shorter ones there is padding.
    vocabulary : int
        The largest size of either language's vocabulary: padding, the unknown word, start and end
        of a sentence, and the most frequent words of the sentences to train on.

    Returns
    -------
    Splits
        `x` are source and target, int32 (n, steps) each: the target shifted right, behind ``<s>``.
        `y` is the target, with `IGNORED` at padding.

    Raises
    ------
    UserError
        If a file is missing or damaged, they differ in length, or no pair is short enough.
    """
    train = _read(base, languages, steps)
    path = Path(base)
    test_base = str(path.with_name("test"))
    there = path.name == "train" and find_text(Path(f"{test_base}.{languages[0]}")) is not None
    words = tuple(
        Vocabulary.of((pair[side] for pair in train), vocabulary, SPECIALS) for side in (0, 1)
    )
    test = _dataset(_read(test_base, languages, steps), words, steps, test_base) if there else None
    return Splits(_dataset(train, words, steps, base), test)


def _read(base: str, languages: tuple[str, str], steps: int) -> list[Pair]:
    sides = []
    for language in languages:
        path = find_text(Path(f"{base}.{language}"))
        if path is None:
            raise UserError(
                f"{base}.{language}: there is no such file, and the sentences in one of the "
                "languages are to come from it"
            )
        sides.append(read_lines(path))
    if len(sides[0]) != len(sides[1]):
        raise UserError(
            f"{base}.{languages[0]} has {len(sides[0])} lines and {base}.{languages[1]} "
            f"{len(sides[1])}, but each has to be the other's translation, line by line"
        )
    pairs = [
        Pair(tokenise(source, lower=False), [*tokenise(target, lower=False), END], target)
        for source, target in zip(*sides, strict=True)
    ]
    kept = [p for p in pairs if 0 < len(p.source) <= steps and 1 < len(p.target) <= steps]
    if not kept:
        raise UserError(
            f"{base}: none of the {len(pairs)} pairs of sentences has between 1 and {steps} tokens "
            "on both sides; take longer sequences by --size steps=N"
        )
    return kept


def _dataset(
    pairs: Sequence[Pair], words: tuple[Vocabulary, ...], steps: int, name: str
) -> TokenDataset:
    n = len(pairs)
    pad = words[0].number(PAD)
    source, shifted = (np.full((n, steps), pad, np.int32) for _ in range(2))
    labels: Tokens = np.full((n, steps), IGNORED, np.int32)
    for row, pair in enumerate(pairs):
        source[row, : len(pair.source)] = words[0].encode(pair.source)
        target = words[1].encode(pair.target)
        labels[row, : len(target)] = target
        shifted[row, 0] = words[1].number(START)
        shifted[row, 1 : len(target)] = target[:-1]
    return TokenDataset(
        (source, shifted),
        labels,
        name,
        len(words[1]),
        max(map(len, words)),
        words,
        tuple(pair.text for pair in pairs),
    )
