"""Made-up data of a network's own sizes, to see how fast it trains, and that it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flexlegion.data.dataset import Dataset, Labels, Samples, Splits, TokenDataset
from flexlegion.errors import UserError

NAME = "synthetic"


def synthetic(
    task: str, sizes: Mapping[str, Any], samples: int, test_samples: int, seed: int
) -> Splits[Dataset]:
    """Random samples and labels.

    Parameters
    ----------
    task : str
        One of `flexlegion.data.tasks.TASKS`.
    sizes : mapping
        The network's: "input_shape" or "steps", "classes" or "vocabulary".
    samples, test_samples : int
        How many to train on, and to test with.
    seed : int
        Decides all values.

    Returns
    -------
    Splits
        Images are normally distributed; tokens and labels uniformly below their number.

    Raises
    ------
    UserError
        If there are no samples or no positive sizes.
    """
    if samples < 1:
        raise UserError(f"the number of samples has to be at least 1, but is {samples}")
    # The networks themselves check sizes well, but are built to fit the data.
    for name in ("input_shape", "steps", "classes", "vocabulary"):
        value = sizes.get(name, 1)
        if min(value if isinstance(value, tuple) else (value,)) < 1:
            raise UserError(f"the size {name} has to be at least 1, but is {value}")
    train, test = (
        _dataset(task, sizes, n, np.random.default_rng([seed, part]))
        for part, n in enumerate((samples, test_samples))
    )
    return Splits(train, test)


def _dataset(task: str, sizes: Mapping[str, Any], n: int, rng: np.random.Generator) -> Dataset:
    if task == "images":
        images = rng.standard_normal((n, *sizes["input_shape"]), np.float32)
        return Dataset(images, _uniform(rng, sizes["classes"], (n,)), NAME, sizes["classes"])
    vocabulary, sequences = sizes["vocabulary"], (n, sizes["steps"])
    classes = sizes["classes"] if task == "text" else vocabulary
    inputs: tuple[Samples, ...] = tuple(
        _uniform(rng, vocabulary, sequences) for _ in range(2 if task == "translation" else 1)
    )
    labels: Labels = _uniform(rng, classes, (n,) if task == "text" else sequences)
    x = inputs if len(inputs) > 1 else inputs[0]
    return TokenDataset(x, labels, NAME, classes, vocabulary)


def _uniform(rng: np.random.Generator, below: int, shape: tuple[int, ...]) -> Any:
    return rng.integers(below, size=shape, dtype=np.int32)
