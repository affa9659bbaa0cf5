"""Arrays of a file by the names of a model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.data.dataset import Splits, split_rows
from flexlegion.data.loaders import load_npz
from flexlegion.graph.graph import Graph
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


def load_named(source: str, graph: Graph, labelled: bool = True) -> Splits[NamedArrays]:
    """Samples to train on and, if the file has some of its own, to test with.

    Parameters
    ----------
    source
        An ``.npz`` file with an array for each input of the model by its name (of a model with one
        input, ``x`` will do) and labels as ``y``, or for several outputs by their names. Arrays to
        test with, if there are any, are called the same with ``_test`` at the end.
    graph
        The model's, with its losses.
    labelled
        Whether labels have to be there; otherwise they are left out.

    Raises
    ------
    UserError
        If the file cannot be read, or does not have what the model needs.
    """
    path = Path(source)
    if path.suffix != ".npz" or not path.is_file():
        raise UserError(
            f"{source}: a model of your own takes --data synthetic, or an existing .npz file with "
            "arrays by the names of its inputs and outputs, or x and y"
        )
    arrays = load_npz(path, dict)
    train = _named(path, graph, arrays, "", labelled)
    tested = any(name.endswith("_test") for name in arrays)
    return Splits(train, _named(path, graph, arrays, "_test", labelled) if tested else None)


def _named(
    path: Path, graph: Graph, arrays: Mapping[str, Array], ending: str, labelled: bool
) -> NamedArrays:
    labels = labels_of(graph)
    inputs = [t.name for t in graph.inputs if t not in labels.values()]
    x = _chosen(path, arrays, inputs, "x", ending)
    y = _chosen(path, arrays, list(labels), "y", ending) if labelled else {}
    counts = {name: len(array) if array.ndim else 0 for name, array in (x | y).items()}
    if len(set(counts.values())) > 1 or not all(counts.values()):
        told = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise UserError(f"{path}: all arrays need the same number of samples, but there are {told}")
    return NamedArrays(x, y or None, next(iter(counts.values())), str(path))


def _chosen(
    path: Path, arrays: Mapping[str, Array], names: Sequence[str], short: str, ending: str
) -> dict[str, Array]:
    """The arrays of these names; of a single one, `short` will do."""
    if len(names) == 1 and names[0] + ending not in arrays and short + ending in arrays:
        return {names[0]: arrays[short + ending]}
    for name in names:
        if name + ending not in arrays:
            there = ", ".join(sorted(arrays)) or "nothing"
            hint = f" (or {short}{ending})" if len(names) == 1 else ""
            raise UserError(
                f"{path}: this file holds {there}, but the model needs an array "
                f"'{name}{ending}'{hint}"
            )
    return {name: arrays[name + ending] for name in names}
