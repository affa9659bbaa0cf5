"""Arrays of data by the names of a model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import printable
from flexlegion.base.suggestions import did_you_mean
from flexlegion.data.dataset import Splits, split_rows
from flexlegion.data.loaders import load_npz
from flexlegion.data.tables import KINDS, Columns, is_table, open_table
from flexlegion.graph.graph import Graph
from flexlegion.graph.tensor import Tensor
from flexlegion.objective.losses import labels_of

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class NamedArrays:
    """Samples as `Model.fit` takes them.

    Parameters
    ----------
    x
        An array (samples, ...) for each input, by its name.
    y
        One for each output that has labels, by its name; None: none has.
    samples
        How many.
    name
        What messages call them.
    """

    x: Mapping[str, Array]
    y: Mapping[str, Array] | None
    samples: int
    name: str

    def take(self, rows: npt.NDArray[np.int64]) -> NamedArrays:
        """Some of the samples."""
        x = {name: array[rows] for name, array in self.x.items()}
        y = None if self.y is None else {name: array[rows] for name, array in self.y.items()}
        return NamedArrays(x, y, len(rows), self.name)

    def split(self, held_out: float, seed: int) -> tuple[NamedArrays, NamedArrays]:
        """Divide at random; see `Dataset.split`."""
        rest, held = split_rows(self.name, self.samples, held_out, seed)
        return self.take(rest), self.take(held)


def load_named(
    source: str,
    graph: Graph,
    labelled: bool = True,
    columns: Mapping[str, str] | None = None,
) -> Splits[NamedArrays]:
    """Samples to train on and, if the data have some of their own, to test with.

    Parameters
    ----------
    source
        An ``.npz`` file, a Parquet file, or others (`flexlegion.data.tables`), with an array or a
        column for each input of the model by its name (of a model with one input, ``x`` will do)
        and labels as ``y``, or for several outputs by their names. Arrays of an ``.npz`` file to
        test with, if there are any, are called the same with ``_test`` at the end.
    graph
        The model's, with its losses.
    labelled
        Whether labels have to be there; otherwise they are left out.
    columns
        Of inputs and outputs by their names, the columns that are called otherwise.

    Raises
    ------
    UserError
        If the data cannot be read, or do not have what the model needs.
    """
    path = Path(source)
    if not is_table(source) and (path.suffix != ".npz" or not path.is_file()):
        raise UserError(
            f"{source}: a model of your own takes --data synthetic, or existing data with arrays "
            f"by the names of its inputs and outputs, or x and y: {KINDS}"
        )
    labels = labels_of(graph)
    wanted = _Wanted(
        path,
        {t.name: t for t in graph.inputs if t not in labels.values()},
        labels if labelled else {},
        columns or {},
    )
    wanted.check_columns(list(labels))
    train, test = open_table(path, lambda its: load_npz(its, dict))
    return Splits(wanted.read(train), None if test is None else wanted.read(test, "_test"))


@dataclass(frozen=True)
class _Wanted:
    """What a model needs of data: inputs and labels by their names, some of other columns."""

    path: Path
    inputs: Mapping[str, Tensor]
    labels: Mapping[str, Tensor]
    columns: Mapping[str, str]

    def check_columns(self, labels: Sequence[str]) -> None:
        """Raise `UserError` if a column is named for something that the model does not have."""
        known = [*self.inputs, *labels]
        for name in self.columns:
            if name not in known:
                raise UserError(
                    f"--columns names '{printable(name)}', but the model has "
                    f"{', '.join(known)}{did_you_mean(name, known)}"
                )

    def read(self, there: Columns, ending: str = "") -> NamedArrays:
        """A part of the data; `ending`: what stands behind its arrays' names, for messages."""
        ending = ending if self.path.suffix == ".npz" else ""
        x = self._chosen(there, self.inputs, "x", ending)
        y = self._chosen(there, self.labels, "y", ending)
        counts = {name: len(array) if array.ndim else 0 for name, array in (x | y).items()}
        if len(set(counts.values())) > 1 or not all(counts.values()):
            told = ", ".join(f"{count} of {name}" for name, count in counts.items())
            raise UserError(
                f"{self.path}: all arrays need the same number of samples, but there are {told}"
            )
        return NamedArrays(x, y or None, next(iter(counts.values())), str(self.path))

    def _chosen(
        self, there: Columns, tensors: Mapping[str, Tensor], short: str, ending: str
    ) -> dict[str, Array]:
        """The arrays of these names, or of the columns named for them; of one, `short` will do."""
        found = {}
        for name, tensor in tensors.items():
            column = self.columns.get(name, name)
            alone = len(tensors) == 1 and name not in self.columns
            if alone and column not in there.names:
                column = short
            if column not in there.names:
                names = ", ".join(sorted(f"{each}{ending}" for each in there.names)) or "nothing"
                hint = f" (or {short}{ending})" if alone else ""
                asked = self.columns.get(name, name)
                kind = "an array" if self.path.suffix == ".npz" else "a column"
                raise UserError(
                    f"{self.path}: this file holds {printable(names)}, but the model needs {kind} "
                    f"'{asked}{ending}'{hint}{self._advice(kind)}"
                )
            found[name] = there.read(column, tensor)
        return found

    @staticmethod
    def _advice(kind: str) -> str:
        return "" if kind == "an array" else "; --columns NAME=COLUMN says which it is"
