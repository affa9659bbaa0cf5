"""How a model is trained, as one value: built from a caller's options, and handed on from there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict, Unpack, get_type_hints

from flexlegion.base.arguments import fits
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import shown
from flexlegion.objective.losses import Losses, Weights, is_named
from flexlegion.objective.optimizers import (
    DEFAULT_OPTIMIZER,
    Optimizer,
    optimizer_of,
    optimizer_with,
)
from flexlegion.objective.precision import DEFAULT, DEFAULT_STORAGE, check_precision, check_storage

MAX_MICRO_BATCHES = 1 << 12  # as kMaxMicroBatches in native/plan/graph.h
MOST_TRIED = 64  # micro-batches, where all numbers of them are tried and nobody says up to which


def check_micro_batches(number: object) -> None:
    """Raise `UserError` unless an iteration can have so many."""
    if type(number) is not int or not 1 <= number <= MAX_MICRO_BATCHES:
        raise UserError(
            f"the number of micro-batches is 1 to {MAX_MICRO_BATCHES:,}, but is {shown(number)}"
        )


class Refinements(TypedDict, total=False):
    """The options of `TrainingOptions` but for loss and optimizer."""

    loss_weights: Weights
    precision: str | None
    storage: str | None
    micro_batches: int | None


class TrainingOptions(Refinements, total=False):
    """Options of functions that take a model, one for each field of `TrainingSpec`.

    None is as if the option was not given.
    """

    loss: Losses | None
    optimizer: str | Optimizer | None


@dataclass(frozen=True)
class TrainingSpec:
    """How a model is trained.

    Another option is stated in two lines, a field here and its type above. Functions of the Python
    API take it from then on, and strategy files hold it.

    Parameters
    ----------
    loss
        As `Model.compile` takes it. None: the model's own, see `chosen_loss`.
    loss_weights
        Of several losses, as `Model.compile` takes them.
    optimizer
        With its hyperparameters, clipping among them.
    precision
        In which GPUs compute products: "fp32", "tf32" or "bf16".
    storage
        What activations are stored as: "fp32", "bf16" or "fp16".
    micro_batches
        In how many parts a batch goes through the network, whose gradients add up.

    Raises
    ------
    UserError
        If there is no such precision, storage or number.
    """

    loss: Losses | None = None
    loss_weights: Weights = None
    optimizer: Optimizer = optimizer_of(DEFAULT_OPTIMIZER)
    precision: str = DEFAULT
    storage: str = DEFAULT_STORAGE
    micro_batches: int = 1

    def __post_init__(self) -> None:
        check_precision(self.precision)
        check_storage(self.storage)
        check_micro_batches(self.micro_batches)

    @classmethod
    def of(cls, **options: Unpack[TrainingOptions]) -> TrainingSpec:
        """What options of a function say.

        Raises
        ------
        UserError
            If there is no such optimizer, precision or storage.
        """
        given: dict[str, Any] = {k: value for k, value in options.items() if value is not None}
        if "optimizer" in given:
            given["optimizer"] = optimizer_of(given["optimizer"])
        return cls(**given)

    def facts(self) -> dict[str, Any]:
        """For files and JSON; `options_in` reads it.

        A loss that is more than names is the model's own, or has to be said again: None.
        """
        others = {field.name: getattr(self, field.name) for field in fields(self)}
        del others["loss"], others["optimizer"]
        return {
            "loss": self.loss if is_named(self.loss) else None,
            "optimizer": self.optimizer.type,
            "hyperparameters": self.optimizer.facts(),
        } | {name: value for name, value in others.items() if value is not None}


DEFAULT_TRAINING = TrainingSpec()


def options_in(
    facts: Mapping[str, Any], source: str, without: Collection[str] = ()
) -> dict[str, Any]:
    """The options of the spec whose `TrainingSpec.facts` these are.

    Parameters
    ----------
    facts
        What a file says, maybe beside other things.
    source
        The file's name, for messages.
    without
        Options that are not looked at.

    Raises
    ------
    UserError
        If one of the facts is of no such type, or there is no such hyperparameter.
    """
    types = get_type_hints(TrainingOptions) | {"hyperparameters": dict}
    found: dict[str, Any] = {}
    for name, its in types.items():
        value = facts.get(name)
        if value is None or name in without:
            continue
        if not fits(value, its):
            raise UserError(f"{source}: 'found' has the {name} {shown(value)}, which is none")
        found[name] = value
    hyperparameters = found.pop("hyperparameters", {})
    if "optimizer" in found:
        found["optimizer"] = optimizer_with(found["optimizer"], hyperparameters, source)
    return found
