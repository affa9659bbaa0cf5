"""Data that are read sample by sample while training runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.graph.tensor import Shape


class BatchSource(ABC):
    """Samples with labels that are read when their batch comes up: memory need not hold them all.

    `Model.fit`, `evaluate` and `predict` take one in place of arrays. Threads of theirs read
    samples, several batches ahead of the one that is computed. On several ranks, each reads the
    samples that its processors are to have; of the others it needs no more than labels.
    """

    name: str  # for messages

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @property
    @abstractmethod
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of one sample's arrays: the network's inputs, and the labels at the end."""

    @property
    def byte_values(self) -> tuple[npt.NDArray[np.float32] | None, ...]:
        """For each of `shapes`: what bytes 0 to 255 stand for, if `read` writes bytes (uint8).

        Such data take a quarter of the memory until a processor gets them. By default none are.
        """
        return (None,) * len(self.shapes)

    @abstractmethod
    def read(self, row: int, epoch: int, out: Sequence[npt.NDArray[Any]]) -> None:
        """Write a sample into arrays of `shapes` that have the network's element types, or bytes.

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

    def read_labels(self, row: int, epoch: int, out: Sequence[npt.NDArray[Any]]) -> None:
        """Write at least the labels of a sample, which are at the end of `out`; see `read`.

        What a label adds to the loss depends on how many labels of the batch count, so every rank
        reads the class numbers of all samples. By default this reads whole samples: it is for
        sources to replace that have labels for less.
        """
        self.read(row, epoch, out)
