"""Text: files of lines, tokens, and vocabularies.

The rule for tokens is simple: each run of letters, digits and underscores is one, and each other
character that is no blank is one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.data.reading import read_content

PAD, UNKNOWN, START, END, END_OF_LINE = "<pad>", "<unk>", "<s>", "</s>", "<eos>"
COMPRESSED = (".gz", ".xz")

_TOKEN = re.compile(r"\w+|[^\w\s]")
_NO_SPACE_BEFORE = re.compile(r" ([.,:;!?)\]}%])")
_NO_SPACE_AFTER = re.compile(r"([(\[{]) ")

Tokens = npt.NDArray[np.int32]


def tokenise(text: str, lower: bool = True) -> list[str]:
    """Split text into words and single punctuation characters, in lower case unless told."""
    return _TOKEN.findall(text.lower() if lower else text)


def detokenise(tokens: Iterable[str]) -> str:
    """Join tokens to text, without blanks before most punctuation."""
    joined = _NO_SPACE_BEFORE.sub(r"\1", " ".join(tokens))
    return _NO_SPACE_AFTER.sub(r"\1", joined)


def find_text(path: Path) -> Path | None:
    """The file, or a compressed one of that name: with ``.gz`` or ``.xz`` behind it."""
    candidates = (path, *(path.with_name(path.name + end) for end in COMPRESSED))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file, which may be compressed (``.gz``, ``.xz``).

    Raises
    ------
    UserError
        If the file cannot be read, or is not text.
    """
    try:
        text = read_content(path, "a text").decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: this is no UTF-8 text, because of the byte at position {error.start}."
        ) from error
    # Not splitlines(), which would also split at characters that occur within lines of text.
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


class Vocabulary:
    """Words and their numbers: special tokens first, then words by falling frequency.

    Parameters
    ----------
    words
        All words, the special ones included; `UNKNOWN` has to be among them.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._numbers = {word: number for number, word in enumerate(self.words)}
        self._unknown = self._numbers[UNKNOWN]

    @classmethod
    def of(cls, texts: Iterable[Sequence[str]], size: int, specials: Sequence[str]) -> Vocabulary:
        """The `size` first of the special tokens and the most frequent words of tokenised texts.

        Words that are equally frequent are in alphabetical order.

        Raises
        ------
        UserError
            If the size has no room for a word beside the special tokens.
        """
        if size <= len(specials):
            raise UserError(
                f"a vocabulary of {size} has no room for words beside {' '.join(specials)}; it "
                f"needs at least {len(specials) + 1}"
            )
        counts = Counter(word for text in texts for word in text)
        for special in specials:
            counts.pop(special, None)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls([*specials, *ranked[: size - len(specials)]])

    def __len__(self) -> int:
        """Return the number of words."""
        return len(self.words)

    def number(self, word: str) -> int:
        """The number of a word; of one that is not there, that of `UNKNOWN`."""
        return self._numbers.get(word, self._unknown)

    def encode(self, tokens: Iterable[str]) -> Tokens:
        """The numbers of tokens, int32 (n)."""
        return np.fromiter(map(self.number, tokens), np.int32)

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """The words of numbers up to `END`, without `START` and `PAD`."""
        words: list[str] = []
        for number in numbers:
            word = self.words[number]
            if word == END:
                break
            if word not in (START, PAD):
                words.append(word)
        return words
