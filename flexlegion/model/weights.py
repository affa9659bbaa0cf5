"""The weights of a model that is compiled: read, set, and kept in files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import printable
from flexlegion.layers.arrays import array_of, check_integers, check_numbers
from flexlegion.training.agreement import check_same, together
from flexlegion.training.checkpoints.weights import fitted, read_weights, save_weights
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

    def get_weights(self) -> dict[str, Array]:
        """All weights by name, e.g. ``conv2d.kernel`` (out, kh, kw, in)."""
        state = self._ready()
        return {tensor.name: state.program.read(tensor) for tensor in state.graph.weights}

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Set weights by name; those not named stay."""
        state = self._ready()
        tensors = {tensor.name: tensor for tensor in state.graph.weights}
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
        self._write(arrays)

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

    def load_weights(self, path: str | Path) -> None:
        """Set all weights to those of a file.

        Parameters
        ----------
        path
            What `save_weights` wrote, or a checkpoint's folder; of an imported model also a
            ``.safetensors`` file of the module's parameters, as Hugging Face has them, or the index
            or the folder of several.

        Raises
        ------
        UserError
            If the file cannot be read, or its weights are those of another model.
        """
        weights = self._ready().graph.weights
        shapes = {tensor.name: tensor.shape for tensor in weights}
        needed = {tensor.name for tensor in weights if not tensor.constant}
        source = printable(str(path))
        read: dict[str, Array] = {}

        def read_them() -> None:
            read.update(fitted(read_weights(path), shapes, needed, self.origin, source))

        together(read_them)
        self.set_weights(read)

    # Inside

    def _ready(self) -> Compiled:
        if self._compiled is None:
            raise UserError("the model is not compiled; call compile() first")
        return self._compiled

    def _write(self, weights: Mapping[str, Array]) -> None:
        state = self._ready()
        for tensor in state.graph.weights:
            if tensor.name in weights:
                state.program.write(tensor, weights[tensor.name])
