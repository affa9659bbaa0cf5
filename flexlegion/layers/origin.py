"""What an imported model remembers of the module: how parameters and buffers lie in our weights.

A weight holds a parameter, its dimensions cut, reordered and joined again: a convolution's filters
have their channels last here, a dense layer after a flatten its columns in the order of height,
width, channel. Of a parameter that stacks several matrices, each weight may hold one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import unknown
from flexlegion.graph.tensor import Shape
from flexlegion.layers.arrangement import Arrangement
from flexlegion.layers.arrays import array_of

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """From parameter to weight: cut into `factors`, dimensions in `order`, joined to `shape`.

    With `taken` (factor, i), the weight holds the elements i of that factor alone, and `order` is
    of the other ones. With `rows` (count, start, stop), all that is of these rows of the parameter.
    """

    factors: Shape
    order: tuple[int, ...]
    shape: Shape
    taken: tuple[int, int] | None = None
    rows: tuple[int, int, int] | None = None

    def of(self, parameter: Array) -> Array:
        """The weight's values."""
        cut = self._part(parameter).transpose(self.order)
        return np.ascontiguousarray(cut.reshape(self.shape))

    def put(self, weight: Array, parameter: Array) -> None:
        """Write what a weight holds to where it is among the parameter's elements."""
        part = self._part(parameter)
        cut = weight.reshape([part.shape[d] for d in self.order])
        part[...] = cut.transpose(np.argsort(self.order))

    def overlaps(self, other: Layout) -> bool:
        """Whether two weights would hold the same elements of a parameter."""
        if self.rows is not None and other.rows is not None and self.rows != other.rows:
            return self.rows[1] < other.rows[2] and other.rows[1] < self.rows[2]
        return None in (self.taken, other.taken) or self.taken == other.taken

    def size(self) -> int:
        """Elements of the whole parameter."""
        count = math.prod(self.factors)
        return count if self.rows is None else count // (self.rows[2] - self.rows[1]) * self.rows[0]

    def _part(self, parameter: Array) -> Array:
        """The elements of a parameter that the weight holds, as a view."""
        if self.rows is not None:
            count, start, stop = self.rows
            parameter = parameter.reshape(count, -1)[start:stop]
        cut = parameter.reshape(self.factors)
        if self.taken is None:
            return cut
        factor, i = self.taken
        return cut[(slice(None),) * factor + (i,)]


@dataclass(frozen=True)
class Place:
    """Where a parameter or buffer is, or a part of it: in the weight of that name."""

    weight: str
    layout: Layout


@dataclass
class Origin:
    """What an imported model remembers of the module.

    Parameters
    ----------
    places
        Where each parameter and running average is, by its name in the module; all its parts.
    shapes
        Of each of these in the module.
    aliases
        Further names of parameters, for those that several layers share.
    buffers
        Values of the module's buffers that nothing trains or averages, by name: what was computed
        of them is constant in the model.
    input_names
        The module's inputs, in order; so are the model's called.
    output_names
        The module's outputs by name, in the order of `Model.outputs`: each the name of its tensor.
    arrangements
        How inputs and outputs have the module's dimensions, by the names of their tensors.
    notes
        What the user should know of the import.
    """

    places: dict[str, tuple[Place, ...]] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    aliases: dict[str, list[str]] = field(default_factory=dict)
    buffers: dict[str, Array] = field(default_factory=dict)
    input_names: list[str] = field(default_factory=list)
    output_names: dict[str, str] = field(default_factory=dict)
    arrangements: dict[str, Arrangement] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """For each input the order in which it has PyTorch's dimensions: of images (0, 2, 3, 1)."""
        return {name: self.arrangements[name].order for name in self.input_names}

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """The same for outputs."""
        return {name: self.arrangements[t].order for name, t in self.output_names.items()}

    def note_unchecked(self, reason: str | None) -> None:
        """Say, if there is a reason, that nothing was compared with what was imported."""
        if reason is not None:
            self.notes.append(f"the import was not checked: {reason}")

    def parameter(self, name: str, weights: Mapping[str, Array]) -> Array:
        """A parameter's elements, in their order in the module."""
        places = self.places[name]
        values = np.empty(places[0].layout.size(), weights[places[0].weight].dtype)
        for place in places:
            place.layout.put(weights[place.weight], values)
        return values

    def arrays(self, inputs: Any) -> list[Array]:
        """A module's inputs as the model takes them.

        Parameters
        ----------
        inputs
            A tensor or array; or a tuple, list or dict of them, in which more of these may lie.
            Those of a dict are found by the inputs' names.

        Returns
        -------
        list of Array
            One for each input, in the model's order: float32 or int32, images (n, h, w, c).

        Raises
        ------
        UserError
            If there are other inputs than the model has, or of other ranks.
        """
        given = _leaves(inputs)
        by_name = isinstance(inputs, dict) and all(name in given for name in self.input_names)
        values = [given[name] for name in self.input_names] if by_name else list(given.values())
        if len(values) != len(self.input_names) or len(given) != len(values):
            raise UserError(
                f"the model has {len(self.input_names)} inputs, {', '.join(self.input_names)}, but "
                f"{len(given)} were given"
            )
        arrays = []
        for name, value in zip(self.input_names, values, strict=True):
            array = array_of(name, value)
            its = self.arrangements[name]
            if array.ndim != len(its.dims):
                raise UserError(
                    f"input '{name}' has {len(its.dims)} dimensions in the module, but shape "
                    f"{list(array.shape)} was given"
                )
            kind = np.float32 if array.dtype.kind == "f" else np.int32
            arrays.append(np.ascontiguousarray(array.transpose(its.order), kind))
        return arrays

    def as_module(self, name: str, output: Array) -> Array:
        """An output of the model as the module has it.

        Parameters
        ----------
        name
            Of the output in the module, as in `output_names`.
        output
            What `Model.predict` returned for it.

        Raises
        ------
        UserError
            If there is no such output.
        """
        if name not in self.output_names:
            raise unknown("output", name, self.output_names)
        return self.arrangements[self.output_names[name]].to_module(output)


def _leaves(value: Any, name: str = "") -> dict[str, Any]:
    """Tensors in nested tuples, lists and dicts, by their place: ``batch_tokens``, ``images_0``."""
    if not isinstance(value, dict | list | tuple):
        return {name: value}
    leaves: dict[str, Any] = {}
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        leaves |= _leaves(part, f"{name}_{key}" if name else str(key))
    return leaves
