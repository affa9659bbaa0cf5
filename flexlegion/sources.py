"""Data that are read sample by sample while training runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.graph import Graph
from flexlegion.losses import labels_of
from flexlegion.tensor import Shape


class BatchSource(ABC):
    """Samples with labels that are read when their batch comes up: memory need not hold them all.

    `Model.fit`, `evaluate` and `predict` take one in place of arrays. Threads of theirs read
    samples, several batches ahead of the one that is computed.
    """

    name: str  # for messages

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @property
    @abstractmethod
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of one sample's arrays: the network's inputs, and the labels at the end."""

    @abstractmethod
    def read(self, row: int, epoch: int, out: Sequence[npt.NDArray[Any]]) -> None:
        """Write a sample into arrays of `shapes` that have the network's element types.

        Threads call this at the same time. What it writes is a function of the arguments alone.

        Parameters
        ----------
        row
            Number of the sample, from 0.
        epoch
            Number of the pass over the samples, for those that change from one to the next.
        out
            Where to.

        Raises
        ------
        UserError
            If the sample cannot be read.
        """


def first_samples(
    source: BatchSource, graph: Graph, samples: int
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
    """The first samples of a source as arrays: x and y as `Model.fit` takes them.

    Parameters
    ----------
    source
        Samples and labels.
    graph
        With losses; inputs and labels have the order of the source's arrays.
    samples
        How many at most.
    """
    labels = labels_of(graph)
    inputs = {t.name: t for t in graph.inputs if t not in labels.values()}
    number = min(samples, len(source))
    x, y = (
        {name: np.zeros((number, *t.shape[1:]), t.dtype) for name, t in tensors.items()}
        for tensors in (inputs, labels)
    )
    arrays = [*x.values(), *y.values()]
    for row in range(number):
        source.read(row, 0, [array[row, ...] for array in arrays])
    return x, y
