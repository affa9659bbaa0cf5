"""What a network is that is compared with PyTorch: its layers, its data and its training."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.objective.losses import (
    BinaryCrossentropy,
    CategoricalCrossentropy,
    Loss,
    SparseCategoricalCrossentropy,
)
from flexlegion.objective.optimizers import SGD, Optimizer

BATCH = 6
MSE, SPARSE, ONE_HOT = (
    "mean_squared_error",
    "sparse_categorical_crossentropy",
    "categorical_crossentropy",
)
L1, HUBER, BINARY = "mean_absolute_error", "huber", "binary_crossentropy"

# A method of Model, and its options. Layer i is named "l<i>". The option `of` names what the layer
# reads, the tensor before it unless given: 0 is the input, i + 1 the output of layer i (a split's
# outputs count one by one; of an LSTM, it is y). An LSTM's option `after` names the layer that it
# continues, with the same weights. Batch normalisation's `residual` and attention's `bias` name a
# tensor as `of` does. In a list, a float is a number.
Layer = tuple[str, dict[str, Any]]

SOURCES = ("constant", "parameter")  # read nothing; their weight has the layer's name
LISTS = ("add", "concat", "multiply")  # layers that take their inputs as one list


def sources(layers: Sequence[Layer]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Each layer's kind, what it reads, and its other options."""
    for kind, options in layers:
        yield kind, options.get("of", -1), {k: v for k, v in options.items() if k != "of"}


@dataclass(frozen=True)
class Case:
    """A network and its training.

    Parameters
    ----------
    shape
        The input's, without the sample dimension.
    layers
        Applied one after another.
    loss, optimizer
        As for `Model.compile`.
    steps
        Number of training steps, each on a batch of its own.
    last_rows
        Number of samples in the last batch.
    levels
        The input has this many different values; 0 for normally distributed ones.
    vocabulary
        If not 0, the input are tokens, int32, below this.
    ignored
        Share of the labels that do not count.
    with_gradient
        Whether training computes the input's gradient, unless it is tokens.
    """

    shape: tuple[int, ...]
    layers: tuple[Layer, ...]
    loss: str | Loss = MSE
    optimizer: Optimizer = SGD(0.1)
    steps: int = 1
    last_rows: int = BATCH
    levels: int = 0
    vocabulary: int = 0
    ignored: float = 0.0
    with_gradient: bool = True

    def rows(self, step: int) -> npt.NDArray[np.int64]:
        """The samples of a step's batch: neither contiguous nor in order."""
        count = self.last_rows if step == self.steps - 1 else BATCH
        return np.arange(step, BATCH * self.steps, self.steps)[::-1][:count].copy()

    def data(self, name: str, output: tuple[int, ...]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Samples and labels, for a model with outputs of shape `output`."""
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        count = BATCH * self.steps
        x: npt.NDArray[Any]
        if self.vocabulary:
            x = rng.integers(self.vocabulary, size=(count, *self.shape)).astype(np.int32)
        elif self.levels:
            x = rng.integers(self.levels, size=(count, *self.shape)).astype(np.float32)
        else:
            x = rng.normal(size=(count, *self.shape)).astype(np.float32)
        if self.loss == SPARSE or isinstance(self.loss, SparseCategoricalCrossentropy):
            labels = rng.integers(output[-1], size=(count, *output[1:-1]))
            labels[rng.random(labels.shape) < self.ignored] = -1
            return x, labels.astype(np.int32)
        y = rng.normal(size=(count, *output[1:]))
        if self.loss == BINARY or isinstance(self.loss, BinaryCrossentropy):
            y = np.where(rng.random(y.shape) < 0.3, np.abs(np.sin(y)), y > 0)
        elif self.loss == ONE_HOT or isinstance(self.loss, CategoricalCrossentropy):
            # Soft labels: any probabilities.
            y = np.exp(y) / np.exp(y).sum(-1, keepdims=True)
        return x, y.astype(np.float32)


def biased(kind: str, **options: Any) -> Layer:
    """A layer whose bias is not zero."""
    return kind, {"bias_initializer": "normal", **options}


def conv2d(filters: int, kernel: Any, **options: Any) -> Layer:
    """A convolution."""
    return biased("conv2d", filters=filters, kernel=kernel, **options)


def dense(units: int, **options: Any) -> Layer:
    """A dense layer."""
    return biased("dense", units=units, **options)


def pool2d(kernel: Any, kind: str, **options: Any) -> Layer:
    """Pooling."""
    return "pool2d", {"kernel": kernel, "kind": kind, **options}


def lstm(hidden: int, **options: Any) -> Layer:
    """Steps of a recurrent layer."""
    return biased("lstm", hidden=hidden, **options)
