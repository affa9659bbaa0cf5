"""A data set in memory: samples, labels, and how to divide them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flexlegion.errors import UserError

Samples = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int32] | npt.NDArray[np.float32]


# No generated equality: comparing arrays element by element has no single truth value.
@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples with their labels.

    Attributes
    ----------
    x : float32 array, shape (n, ...)
        The samples; images are (n, height, width, channels).
    y : int32 array, shape (n, ...), or float32 array, shape (n, ...)
        Class numbers from 0 (one a sample, or one a step of a sequence), or values to regress.
    name : str
        What messages call this data set.
    classes : int, optional
        The number of classes, where it may be more than `y` happens to show: a small subset
        can lack the highest class. `take` and `split` fill it in for the parts they return.

    Raises
    ------
    UserError
        If `x` and `y` differ in length, are empty, or hold labels that are no class numbers.
    TypeError
        If `x` is not float32, or `y` is neither int32 nor float32.
    """

    x: Samples
    y: Labels
    name: str
    classes: int | None = None

    def __post_init__(self) -> None:
        if self.x.dtype != np.float32 or self.y.dtype not in (np.int32, np.float32):
            raise TypeError(
                f"a Dataset holds float32 samples and int32 or float32 labels, not {self.x.dtype} "
                f"and {self.y.dtype}"
            )
        n_samples, n_labels = (array.shape[0] if array.ndim else 0 for array in (self.x, self.y))
        if n_samples != n_labels:
            raise UserError(
                f"{self.name}: there are {n_samples} samples but {n_labels} labels, and each "
                "sample needs exactly one."
            )
        if n_samples == 0:
            raise UserError(f"{self.name}: there are no samples, and at least one is needed.")
        if self.y.dtype == np.int32 and self.y.size:
            lowest, highest = int(self.y.min()), int(self.y.max())
            if lowest < 0:
                raise UserError(
                    f"{self.name}: the label {lowest} is negative, and class numbers start at 0."
                )
            if self.classes is not None and highest >= self.classes:
                raise UserError(
                    f"{self.name}: the label {highest} is out of range, and {self.classes} classes "
                    f"are numbered 0 to {self.classes - 1}."
                )

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self.x.shape[0])

    @property
    def n_classes(self) -> int:
        """Number of classes: `classes` where known, else the highest label plus one.

        Raises
        ------
        UserError
            If the labels are real numbers.
        """
        if self.y.dtype != np.int32:
            raise UserError(
                f"{self.name}: the labels are real numbers, and only integer labels name classes."
            )
        return self.classes if self.classes is not None else int(self.y.max(initial=-1)) + 1

    def take(self, samples: int | npt.NDArray[np.integer]) -> Dataset:
        """Return a part of this data set.

        Parameters
        ----------
        samples : int or integer array, shape (m,)
            The first so many samples, or the indices of the samples in the order wanted.

        Returns
        -------
        Dataset
            The part; it still knows all classes.

        Raises
        ------
        UserError
            If there are fewer samples than asked for.
        """
        n = len(self)
        if isinstance(samples, int):
            if not 1 <= samples <= n:
                raise UserError(
                    f"{self.name}: cannot take {samples} samples, only a number from 1 to {n}."
                )
            return dataclasses.replace(
                self, x=self.x[:samples], y=self.y[:samples], classes=self._known_classes()
            )
        if samples.size and not (samples.min() >= 0 and samples.max() < n):
            raise UserError(f"{self.name}: sample indices must lie between 0 and {n - 1}.")
        return dataclasses.replace(
            self, x=self.x[samples], y=self.y[samples], classes=self._known_classes()
        )

    def split(self, held_out: float, seed: int) -> tuple[Dataset, Dataset]:
        """Divide at random into a part to train on and a part to test with.

        Parameters
        ----------
        held_out : float
            Share of the samples in the second part, strictly between 0 and 1; the number of
            samples is rounded, and each part gets at least one.
        seed : int
            Decides the permutation; the same seed gives the same parts.

        Returns
        -------
        tuple of Dataset
            The rest, and the held-out part; together they hold every sample exactly once.

        Raises
        ------
        UserError
            If `held_out` is out of range or there are not two samples to divide.
        """
        n = len(self)
        if not 0.0 < held_out < 1.0:
            raise UserError(
                f"{self.name}: the held-out share {held_out} is out of range, and must lie "
                "strictly between 0 and 1."
            )
        if n < 2:
            raise UserError(f"{self.name}: one sample cannot be split, at least two are needed.")
        n_held = min(max(round(n * held_out), 1), n - 1)
        order = np.random.default_rng(seed).permutation(n)
        return self.take(order[n_held:]), self.take(order[:n_held])

    def _known_classes(self) -> int | None:
        return self.n_classes if self.y.dtype == np.int32 else None


class Splits(NamedTuple):
    """What a source brings: samples to train on, and its own test samples, if it has some."""

    train: Dataset
    test: Dataset | None
