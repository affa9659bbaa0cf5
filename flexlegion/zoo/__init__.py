"""Ready-made networks; each function builds one by the layer API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flexlegion.errors import UserError
from flexlegion.model import Model
from flexlegion.zoo.alexnet import alexnet
from flexlegion.zoo.lenet import lenet
from flexlegion.zoo.mlp import mlp


@dataclass(frozen=True)
class ZooEntry:
    """A network with its defaults.

    Parameters
    ----------
    build
        Adds the layers to a model: ``build(model, input_shape, classes)``.
    input_shape
        Shape of a sample that the literature uses.
    classes
        Number of classes there.
    """

    build: Callable[[Model, tuple[int, ...], int], None]
    input_shape: tuple[int, ...]
    classes: int


ZOO: dict[str, ZooEntry] = {
    "alexnet": ZooEntry(alexnet, (224, 224, 3), 1000),
    "lenet": ZooEntry(lenet, (32, 32, 1), 10),
    "mlp": ZooEntry(mlp, (32, 32, 1), 10),
}


def build(
    name: str,
    batch_size: int,
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    seed: int = 0,
) -> Model:
    """A network of the zoo, not yet compiled.

    Parameters
    ----------
    name
        For example ``lenet``.
    batch_size
        Samples an iteration.
    input_shape, classes
        To fit other data than the literature's.
    seed
        Seed of the model.

    Raises
    ------
    UserError
        If there is no such network, or it does not fit the input.
    """
    if name not in ZOO:
        raise UserError(f"unknown model '{name}'; choose one of {', '.join(ZOO)}")
    entry = ZOO[name]
    model = Model(batch_size, seed)
    entry.build(model, input_shape or entry.input_shape, classes or entry.classes)
    return model
