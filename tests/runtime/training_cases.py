"""The data of test_training.py: the worker trains on them, and the test computes with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FEATURES, UNITS, CLASSES = 5, 8, 3
BATCH, SAMPLES = 8, 43  # neither divides the other
STRATEGIES = ("single", "data", "model", "random:7")
CPUS = 2

Array = npt.NDArray[Any]


def table_data() -> tuple[Array, Array]:
    """Samples of `FEATURES` numbers, with labels."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    return x, (x @ rng.normal(size=(FEATURES, CLASSES))).argmax(-1).astype(np.int32)


def image_data() -> tuple[Array, Array]:
    """Noisy images with a bright horizontal bar, whose place is the class."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 3, 60).astype(np.int32)
    x = rng.normal(0, 0.3, (60, 8, 8, 1)).astype(np.float32)
    for image, label in zip(x, y, strict=True):
        image[1 + 2 * label : 3 + 2 * label] += 1
    return x, y
