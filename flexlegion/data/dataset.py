"""A data set in memory: samples, labels, and how to divide them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.data.text import Vocabulary

Samples = npt.NDArray[np.float32] | npt.NDArray[np.int32]
Labels = npt.NDArray[np.int32] | npt.NDArray[np.float32]

HELD_OUT = 0.2  # the share of samples to test with, where data bring no test set
IGNORED = -1  # the label of a step that does not count: padding


# No generated equality: comparing arrays element by element has no single truth value.
@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples with their labels.

    Attributes
    ----------
    x : float32 or int32 array, shape (n, ...), or a tuple of such arrays
        The samples; images are (n, height, width, channels), tokens (n, steps). For networks with
        several inputs, an array for each.
    y : int32 array, shape (n, ...), or float32 array, shape (n, ...)
        Class numbers from 0 (one a sample, or one a step of a sequence, where `IGNORED` stands at
        steps that do not count), or values to regress.
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
        If an array is neither int32 nor float32.
    """

    x: Samples | tuple[Samples, ...]
    y: Labels
    name: str
    classes: int | None = None

    def __post_init__(self) -> None:
        for array in (*self.inputs, self.y):
            if array.dtype not in (np.int32, np.float32):
                types = " and ".join(str(part.dtype) for part in (*self.inputs, self.y))
                raise TypeError(f"a Dataset holds float32 or int32 arrays, not {types}")
        n_labels = self.y.shape[0] if self.y.ndim else 0
        for array in self.inputs:
            n_samples = array.shape[0] if array.ndim else 0
            if n_samples != n_labels:
                raise UserError(
                    f"{self.name}: there are {n_samples} samples but {n_labels} labels, and each "
                    "sample needs exactly one."
                )
        if n_labels == 0:
            raise UserError(f"{self.name}: there are no samples, and at least one is needed.")
        if self.y.dtype == np.int32 and self.y.size:
            self._check_classes()

    def _check_classes(self) -> None:
        lowest, highest = int(self.y.min()), int(self.y.max())
        if lowest < (IGNORED if self.y.ndim > 1 else 0):
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
        return len(self.y)

    @property
    def inputs(self) -> tuple[Samples, ...]:
        """The samples' array for each input of a network."""
        return self.x if isinstance(self.x, tuple) else (self.x,)

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

    def take(self, samples: int | npt.NDArray[np.integer]) -> Self:
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
            return self._part(np.arange(samples))
        if samples.size and not (samples.min() >= 0 and samples.max() < n):
            raise UserError(f"{self.name}: sample indices must lie between 0 and {n - 1}.")
        return self._part(samples)

    def split(self, held_out: float, seed: int) -> tuple[Self, Self]:
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
        rest, held = split_rows(self.name, len(self), held_out, seed)
        return self.take(rest), self.take(held)

    def _part(self, rows: npt.NDArray[np.integer]) -> Self:
        x = tuple(array[rows] for array in self.inputs)
        return dataclasses.replace(
            self,
            x=x if isinstance(self.x, tuple) else x[0],
            y=self.y[rows],
            classes=self.n_classes if self.y.dtype == np.int32 else None,
        )


@dataclass(frozen=True, eq=False)
class TokenDataset(Dataset):
    """Samples that are sequences of tokens, int32 (n, steps).

    Attributes
    ----------
    vocabulary : int
        Tokens are below that number.
    vocabularies : tuple of Vocabulary
        The words of each input, where they are known.
    texts : tuple of str
        For translations, what each sample should become, as its file has it.
    """

    vocabulary: int = 0
    vocabularies: tuple[Vocabulary, ...] = ()
    texts: tuple[str, ...] = ()

    def _part(self, rows: npt.NDArray[np.integer]) -> Self:
        part = super()._part(rows)
        texts = tuple(self.texts[row] for row in rows) if self.texts else ()
        return dataclasses.replace(part, texts=texts)


class Divisible(Protocol):
    """What can be split into samples to train on and samples to test with."""

    def split(self, held_out: float, seed: int) -> tuple[Self, Self]:
        """See `Dataset.split`."""


Data = TypeVar("Data", bound=Divisible)


class Splits(NamedTuple, Generic[Data]):
    """What a source brings: samples to train on, and its own test samples, if it has some."""

    train: Data
    test: Data | None

    def divided(self, held_out: float | None, seed: int) -> tuple[Data, Data]:
        """What to train on and to test with: a share held out, if there is no test part.

        Raises
        ------
        UserError
            If there is one, and a share is asked for.
        """
        if self.test is None:
            return self.train.split(HELD_OUT if held_out is None else held_out, seed)
        check_not_held_out(held_out)
        return self.train, self.test


def check_not_held_out(held_out: float | None) -> None:
    """Raise `UserError` if a share of data is asked for that bring a test set."""
    if held_out is not None:
        raise UserError(
            f"the data bring a test set, so that no share of {held_out} is held out; leave "
            "--held-out out"
        )


def split_rows(
    name: str, n: int, held_out: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows to train on and held-out ones, out of `n`; see `Dataset.split`."""
    if not 0.0 < held_out < 1.0:
        raise UserError(
            f"{name}: the held-out share {held_out} is out of range, and must lie "
            "strictly between 0 and 1."
        )
    if n < 2:
        raise UserError(f"{name}: one sample cannot be split, at least two are needed.")
    n_held = min(max(round(n * held_out), 1), n - 1)
    order = np.random.default_rng(seed).permutation(n)
    return order[n_held:], order[:n_held]
