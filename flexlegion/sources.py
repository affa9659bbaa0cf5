"""Data that are read sample by sample while training runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

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
