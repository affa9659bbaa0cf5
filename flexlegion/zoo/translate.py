"""Translations by a trained network, and how good they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.data.parallel import SPECIALS
from flexlegion.data.text import END, PAD, START
from flexlegion.model.model import Model

# Every vocabulary of a parallel corpus begins with the same special tokens.
_PAD, _START, _END = (SPECIALS.index(token) for token in (PAD, START, END))


def greedy(model: Model, source: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Translate, with the likeliest token at each step.

    Each step runs the whole network once more, over the target so far.

    Parameters
    ----------
    model
        Compiled and trained; its inputs are source and shifted target, its output (n, steps, v).
    source
        Sentences, int32 (n, steps).

    Returns
    -------
    int32 array, shape (n, steps)
        Tokens up to ``</s>``, which is left out, and ``<pad>`` behind.
    """
    result = np.full(source.shape, _PAD, np.int32)
    for start in range(0, len(source), model.batch_size):
        rows = slice(start, start + model.batch_size)
        result[rows] = _greedy_batch(model, source[rows])
    return result


def _greedy_batch(model: Model, source: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    n, steps = source.shape
    target = np.full((n, steps + 1), _PAD, np.int32)
    target[:, 0] = _START
    ended = np.zeros(n, bool)
    for step in range(steps):
        output = model.predict([source, target[:, :-1]])
        tokens = output[:, step].argmax(axis=1)
        ended |= tokens == _END
        target[:, step + 1] = np.where(ended, _PAD, tokens)
        if ended.all():
            break
    return target[:, 1:]


def bleu(translations: Sequence[str], references: Sequence[str]) -> float:
    """BLEU (Papineni et al. 2002) of translations, 0 to 100, as sacreBLEU (Post 2018) counts it.

    Raises
    ------
    UserError
        If the package sacrebleu is not installed.
    """
    try:
        import sacrebleu
    except ImportError:
        raise UserError("BLEU needs the package sacrebleu; install it by pip") from None
    return float(sacrebleu.corpus_bleu(list(translations), [list(references)]).score)
