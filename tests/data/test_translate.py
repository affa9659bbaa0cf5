"""Greedy translation, of a network whose answers are known, and BLEU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flexlegion.zoo.translate import bleu, greedy

PAD, END = 0, 3
BATCH, VOCABULARY = 4, 12


class Copies:
    """In place of a model: at step t the likeliest token is the source's, after its end ``</s>``.

    It only sees so if the target so far is right, as a network would.
    """

    batch_size = BATCH

    def __init__(self) -> None:
        self.calls = 0

    def predict(self, x: Any) -> np.ndarray:
        source, target = x
        self.calls += 1
        assert len(source) <= BATCH
        steps = source.shape[1]
        output = np.zeros((*source.shape, VOCABULARY), np.float32)
        for row, sentence in enumerate(source):
            for step in range(steps):
                so_far = target[row, 1 : step + 1]
                right = target[row, 0] == 2 and np.array_equal(so_far, sentence[:step])
                token = sentence[step] if sentence[step] != PAD else END
                output[row, step, token if right else 1] = 1
        return output


def test_every_step_sees_the_tokens_before_it() -> None:
    rng = np.random.default_rng(0)
    source = rng.integers(4, VOCABULARY, (10, 6)).astype(np.int32)
    for row, length in enumerate(rng.integers(1, 7, 10)):
        source[row, length:] = PAD
    model: Any = Copies()
    assert greedy(model, source).tolist() == source.tolist()


def test_ends_when_all_sentences_have() -> None:
    model: Any = Copies()
    source = np.array([[5, 0, 0, 0, 0, 0], [6, 7, 0, 0, 0, 0]], np.int32)
    assert greedy(model, source).tolist() == source.tolist()
    assert model.calls == 3


def test_bleu() -> None:
    references = ["the cat sat on the mat", "a dog ran over the wide field"]
    assert bleu(references, references) == pytest.approx(100)
    assert bleu(["nothing of it", "none"], references) < 1
    # By hand: 5/6 unigrams, 4/5 bigrams, 3/4 trigrams, 2/3 4-grams right; equal lengths.
    expected = 100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
    assert bleu(["the cat sat on the rug"], references[:1]) == pytest.approx(expected, abs=1e-3)
