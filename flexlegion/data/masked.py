"""Text for masked language models (Devlin et al. 2019, section 3.1): words to be guessed.

A sample is ``[CLS] a... [SEP] b... [SEP]``, where b follows a in the text. Of the words, 15 % are
chosen at random: of these, 80 % become ``[MASK]``, 10 % a random word, and 10 % stay. Which ones is
drawn once, and not anew in each epoch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flexlegion.base.errors import UserError
from flexlegion.data.dataset import IGNORED, Dataset, Splits, TokenDataset
from flexlegion.data.language_model import RunningText, read_running_text
from flexlegion.data.text import END_OF_LINE, UNKNOWN, Vocabulary

CLASS, SEPARATOR, MASK = "[CLS]", "[SEP]", "[MASK]"
SPECIALS = (UNKNOWN, CLASS, SEPARATOR, MASK, END_OF_LINE)
MARKS = 3  # in each sample: one [CLS], two [SEP]

CHOSEN = 0.15
MASKED, RANDOM = 0.8, 0.1  # of the chosen


def load_masked(source: Path, steps: int, vocabulary: int, seed: int) -> Splits[Dataset]:
    """Read running text, and mask words of it.

    Parameters
    ----------
    source : Path
        As for `load_language_model`.
    steps : int
        Tokens of a sample; at least 5.
    vocabulary : int
        The largest size of the vocabulary: the special tokens, and the most frequent words of the
        text to train on.
    seed : int
        Decides what is masked.

    Returns
    -------
    Splits
        `x` are tokens and segments, int32 (n, steps) each: segment 0 are a and the marks around it,
        1 is b and its mark. Labels are the chosen words as the text has them, and -1 elsewhere.

    Raises
    ------
    UserError
        If the source is missing, damaged, or too short for one sample.
    """
    if steps < MARKS + 2:
        raise UserError(f"the size steps has to be at least {MARKS + 2}, but is {steps}")
    parts = read_running_text(source)
    words = Vocabulary.of([parts[0].words], vocabulary, SPECIALS)
    rng = np.random.default_rng(seed)
    sets = [_samples(part, words, steps, rng) for part in parts]
    return Splits(sets[0], sets[1] if len(sets) > 1 else None)


def _samples(
    text: RunningText, words: Vocabulary, steps: int, rng: np.random.Generator
) -> TokenDataset:
    stream, length = words.encode(text.words), steps - MARKS
    n = len(stream) // length
    if n < 1:
        raise UserError(
            f"{text.path}: this text has {len(stream)} tokens, and a sample of {steps} steps needs "
            f"{length}"
        )
    middle = length // 2
    marks = (0, middle + 1, steps - 1)
    tokens = np.empty((n, steps), np.int32)
    tokens[:, marks] = [words.number(mark) for mark in (CLASS, SEPARATOR, SEPARATOR)]
    tokens[:, np.delete(np.arange(steps), marks)] = stream[: n * length].reshape(n, length)
    segments = np.zeros((n, steps), np.int32)
    segments[:, middle + 2 :] = 1
    chosen = rng.random((n, steps)) < CHOSEN
    chosen[:, marks] = False
    labels = np.where(chosen, tokens, IGNORED).astype(np.int32)
    fate = rng.random((n, steps))
    tokens[chosen & (fate < MASKED)] = words.number(MASK)
    replaced = chosen & (fate >= MASKED) & (fate < MASKED + RANDOM)
    tokens[replaced] = rng.integers(len(SPECIALS), len(words), np.count_nonzero(replaced))
    known = (words, words)
    return TokenDataset((tokens, segments), labels, str(text.path), len(words), len(words), known)
