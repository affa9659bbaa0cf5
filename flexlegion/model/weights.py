"""The weights of a model that is compiled: read, set, and kept in files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import printable
from flexlegion.layers.arrays import array_of, check_integers, check_numbers
from flexlegion.objective.losses import kept_weights
from flexlegion.training.agreement import check_same, together
from flexlegion.training.checkpoints.shards import Kept, averages_of
from flexlegion.training.checkpoints.weights import (
    Unmatched,
    fitted,
    matched,
    read_weights,
    save_weights,
)
from flexlegion.training.compiled import Compiled

if TYPE_CHECKING:
    from flexlegion.layers.origin import Origin

Array = npt.NDArray[Any]


@typed_methods
class Weights:
    """The part of `Model` that is about its weights.

    Attributes
    ----------
    origin
        Of a model that was imported, from where.
    """

    origin: Origin | None
    _compiled: Compiled | None

    def get_weights(self, averages: bool = False) -> dict[str, Array]:
        """All weights by name, e.g. ``conv2d.kernel`` (out, kh, kw, in).

        Parameters
        ----------
        averages
            Whether to return the moving averages of those that are trained (the optimizer's `ema`).

        Raises
        ------
        UserError
            If there are to be averages, and the optimizer keeps none.
        """
        state = self._ready()
        kept = {one.tensor: one for one in self._averages()} if averages else {}
        return {
            tensor.name: state.program.read(
                tensor, *(_place(kept[tensor]) if tensor in kept else ())
            )
            for tensor in kept_weights(state.graph)
        }

    def set_weights(self, weights: dict[str, Any], averages: bool = False) -> None:
        """Set weights by name, or if `averages` the moving averages; those not named stay."""
        state = self._ready()
        tensors = {tensor.name: tensor for tensor in kept_weights(state.graph)}
        for name, value in weights.items():
            if name not in tensors:
                raise UserError(f"no weight '{name}'; the model has {', '.join(tensors)}")
            array = array_of(name, value)
            check_numbers(name, array)
            if tensors[name].dtype == "int32":
                check_integers(name, array)
            if array.shape != tensors[name].shape:
                raise UserError(
                    f"weight '{name}' has shape {list(tensors[name].shape)}, "
                    f"but the value's shape is {list(array.shape)}"
                )
        arrays = {name: array_of(name, weights[name]) for name in tensors if name in weights}
        if arrays:
            check_same("the weights", arrays.values())
        if not averages:
            self._write(arrays)
            return
        if not state.program.trained:
            raise UserError("averages begin with training; until then, set the weights alone")
        for one in self._averages():
            if one.tensor.name in arrays:
                state.program.write(one.tensor, arrays[one.tensor.name], *_place(one))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Meanwhile the weights are their moving averages: to evaluate, predict, or save with them.

        Training gives each weight that it changes an average if the optimizer has an `ema`. Running
        statistics of normalisations are as they are.

        Raises
        ------
        UserError
            If the optimizer keeps no averages.
        """
        state = self._ready()
        averages = self._averages()
        if state.averaged:
            yield
            return
        values = {one.tensor: state.program.read(one.tensor) for one in averages}
        for one in averages:
            state.program.write(one.tensor, state.program.read(one.tensor, *_place(one)))
        state.averaged = True
        try:
            yield
        finally:
            state.averaged = False
            for tensor, value in values.items():
                state.program.write(tensor, value)

    def save_weights(self, path: str | Path) -> None:
        """Write all weights to a file, in the format of its ending: ``.safetensors`` or ``.npz``.

        The first rank writes; when this returns on any, the file is there.

        Raises
        ------
        UserError
            If the file cannot be written.
        """
        weights = self.get_weights()

        def write() -> None:
            if self._ready().machine.rank == 0:
                save_weights(path, weights)

        together(write)

    def load_weights(
        self, path: str | Path, averages: bool = False, strict: bool = True
    ) -> Unmatched:
        """Set all weights to those of a file.

        Parameters
        ----------
        path
            What `save_weights` wrote, or a checkpoint's folder; of an imported model also a
            ``.safetensors`` file of the module's parameters, as Hugging Face has them, or the index
            or the folder of several.
        averages
            Whether to take the moving averages that a checkpoint has of weights, in their place.
        strict
            Whether the file has to have every weight of the model, and no others. If not, those are
            set that the file has.

        Returns
        -------
        Unmatched
            The names that are ``missing`` in the file, whose weights stay as they are, and those
            that are ``unexpected``, which are not used; the module's names where they are in the
            file. All are there, and none more, if it is strict.

        Raises
        ------
        UserError
            If the file cannot be read, its weights are those of another model, or one has another
            shape, strict or not.
        """
        weights = kept_weights(self._ready().graph)
        shapes = {tensor.name: tensor.shape for tensor in weights}
        needed = {tensor.name for tensor in weights if not tensor.constant}
        source = printable(str(path))
        read: dict[str, Array] = {}
        unmatched = Unmatched([], [])

        def read_them() -> None:
            nonlocal unmatched
            arrays = read_weights(path, averages)
            if strict:
                read.update(fitted(arrays, shapes, needed, self.origin, source))
                return
            its, unmatched = matched(arrays, shapes, needed, self.origin, source)
            read.update(its)

        together(read_them)
        self.set_weights(read)
        return unmatched

    # Inside

    def _averages(self) -> list[Kept]:
        """Where the moving averages of weights are kept; before training, the weights themselves.

        Raises
        ------
        UserError
            If there are none.
        """
        state = self._ready()
        optimizer = state.training.optimizer
        if optimizer.ema is None:
            raise UserError(
                "there are no moving averages of weights; give the optimizer an ema, as in "
                "Adam(ema=0.999), and compile anew"
            )
        kept = averages_of(state.program, optimizer)
        return kept if state.program.trained else [Kept(its.key, its.tensor) for its in kept]

    def _ready(self) -> Compiled:
        if self._compiled is None:
            raise UserError("the model is not compiled; call compile() first")
        return self._compiled

    def _write(self, weights: Mapping[str, Array]) -> None:
        state = self._ready()
        for tensor in state.graph.weights:
            if tensor.name in weights:
                state.program.write(tensor, weights[tensor.name])


def _place(one: Kept) -> tuple[str, int]:
    """Where `Program.read` finds it."""
    return one.field, one.state
