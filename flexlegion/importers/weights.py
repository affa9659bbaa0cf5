"""How parameters and buffers of a module lie in our weights; back into it after training.

A weight holds a parameter, its dimensions cut, reordered and joined again: a convolution's filters
have their channels last here, a dense layer after a flatten its columns in the order of height,
width, channel. Of a parameter that stacks several matrices, each weight may hold one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from flexlegion.errors import UserError
from flexlegion.importers.program import Array, Shape

if TYPE_CHECKING:
    from flexlegion.model import Model


@dataclass(frozen=True)
class Layout:
    """From parameter to weight: cut into `factors`, dimensions in `order`, joined to `shape`.

    With `taken` (factor, i), the weight holds the elements i of that factor alone, and `order` is
    of the other ones.
    """

    factors: Shape
    order: tuple[int, ...]
    shape: Shape
    taken: tuple[int, int] | None = None

    def of(self, parameter: Array) -> Array:
        """The weight's values."""
        cut = self._part(parameter.reshape(self.factors)).transpose(self.order)
        return np.ascontiguousarray(cut.reshape(self.shape))

    def put(self, weight: Array, parameter: Array) -> None:
        """Write what a weight holds to where it is among the parameter's elements."""
        part = self._part(parameter.reshape(self.factors))
        cut = weight.reshape([part.shape[d] for d in self.order])
        part[...] = cut.transpose(np.argsort(self.order))

    def _part(self, cut: Array) -> Array:
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
    inputs, outputs
        For each, by name, the order in which it has PyTorch's dimensions: images have their
        channels last here, (0, 2, 3, 1).
    notes
        What the user should know of the import.
    """

    places: dict[str, tuple[Place, ...]] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    aliases: dict[str, list[str]] = field(default_factory=dict)
    buffers: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def parameter(self, name: str, weights: Mapping[str, Array]) -> Array:
        """A parameter's elements, in their order in the module."""
        places = self.places[name]
        values = np.empty(math.prod(places[0].layout.factors), weights[places[0].weight].dtype)
        for place in places:
            place.layout.put(weights[place.weight], values)
        return values

    def arrays(self, inputs: Any) -> list[Array]:
        """Inputs as the module takes them, a tensor, tuple or dict, as the model takes them."""
        if isinstance(inputs, dict):
            given = [inputs[name] for name in self.inputs]
        else:
            given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if len(given) != len(self.inputs):
            raise UserError(f"the model has {len(self.inputs)} inputs, but {len(given)} were given")
        arrays = []
        for value, order in zip(given, self.inputs.values(), strict=True):
            array = np.asarray(value)
            kind = np.float32 if array.dtype.kind == "f" else np.int32
            arrays.append(np.ascontiguousarray(array.transpose(order), kind))
        return arrays

    def as_module(self, name: str, output: Array) -> Array:
        """An output of the model with its dimensions in the module's order."""
        return np.ascontiguousarray(output.transpose(np.argsort(self.outputs[name])))


def to_torch(model: Model, module: Any) -> None:
    """Fill a module's parameters and running averages with an imported model's.

    Parameters
    ----------
    model
        Made by `from_torch`, and compiled.
    module
        The module that was imported, or another one of the same class and sizes.

    Raises
    ------
    UserError
        If the model was not imported, or the module has other parameters.
    """
    import torch

    origin = getattr(model, "origin", None)
    if origin is None:
        raise UserError("to_torch takes a model that from_torch made")
    weights = model.get_weights()
    state = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    values = {}
    for name in origin.places:
        value = origin.parameter(name, weights)
        targets = [n for n in {name, *origin.aliases.get(name, ())} if n in state]
        if not targets:
            raise UserError(f"the module has no parameter '{name}', which the model was made from")
        for target in targets:
            shape = origin.shapes[name]
            if tuple(state[target].shape) != shape:
                raise UserError(
                    f"parameter '{target}' has shape {list(state[target].shape)}, but the model was"
                    f" made from one of shape {list(shape)}"
                )
            values[target] = value.reshape(shape)
    with torch.no_grad():
        for target, value in values.items():
            state[target].copy_(torch.from_numpy(value))
