"""Options that say how a network is trained: optimizer, loss, precision, storage, micro-batches."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.objective.groups import ParameterGroup
from flexlegion.objective.losses import LOSSES
from flexlegion.objective.named_losses import OPTIONS_HELP
from flexlegion.objective.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS, SGD, Optimizer
from flexlegion.objective.precision import DEFAULT, PRECISIONS, STORAGE_HELP
from flexlegion.objective.training import TrainingOptions, TrainingSpec, options_in

HYPERPARAMETERS = ("lr", "momentum", "weight_decay", "clip_norm", "ema")
NOTHING: Mapping[str, Any] = {}


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """``--optimizer``, ``--clip-norm``, ``--loss``, ``--precision`` and so on."""
    parser.add_argument(
        "--optimizer", help=f"one of {', '.join(OPTIMIZERS)}; default: {DEFAULT_OPTIMIZER}"
    )
    parser.add_argument(
        "--clip-norm", type=float, help="it scales gradients down to this norm, of all together"
    )
    parser.add_argument(
        "--ema",
        type=float,
        metavar="DECAY",
        help="keep a moving average of each weight, as in --ema 0.999; it is what is validated, "
        "tested and saved",
    )
    add_loss_option(parser)
    add_computing_options(parser)
    parser.add_argument(
        "--micro-batches",
        "--accumulate",
        type=int,
        help="in how many parts a batch goes through the network, one after the other: their "
        "gradients add up, and activations take as much less memory; default: 1",
    )


def add_loss_option(parser: argparse.ArgumentParser) -> None:
    """``--loss``."""
    parser.add_argument(
        "--loss",
        help=f"one of {', '.join(LOSSES)}, {OPTIONS_HELP}; default: the network's own",
    )


def add_computing_options(parser: argparse.ArgumentParser) -> None:
    """``--precision``, ``--storage``: what matters without training, too."""
    parser.add_argument(
        "--precision",
        help=f"how GPUs compute products: one of {', '.join(PRECISIONS)}; default: {DEFAULT}",
    )
    parser.add_argument("--storage", help=STORAGE_HELP)


def add_hyperparameter_options(parser: argparse.ArgumentParser) -> None:
    """``--lr``, ``--momentum``, ``--weight-decay``, ``--group``: more of commands that train."""
    parser.add_argument("--lr", type=float, help="learning rate; default: the optimizer's")
    parser.add_argument("--momentum", type=float, help="for sgd")
    parser.add_argument("--weight-decay", type=float, help="default: the optimizer's")
    parser.add_argument(
        "--group",
        action="append",
        metavar="NAMES:VALUES",
        help="weights with an lr or a weight decay of their own, by patterns of names or by their "
        "number of dimensions, as in 'dims<=1:weight_decay=0' or 'head.*:lr=0.1,weight_decay=0'; "
        "may be repeated, and the first that names a weight has it",
    )


def training_from(
    args: argparse.Namespace, found: Mapping[str, Any] = NOTHING, source: str = ""
) -> TrainingSpec:
    """How a network is trained: as the options say, or else as a strategy's file does.

    Parameters
    ----------
    args
        Of `add_training_options`, and maybe of `add_hyperparameter_options`.
    found
        What the file says that the strategy was found for.
    source
        The file's name, for messages.

    Raises
    ------
    UserError
        If there is no such optimizer, precision or storage, or a number is out of range.
    """
    given = _given(args, TrainingOptions.__annotations__)
    training = TrainingSpec.of(**options_in(found, source, without=given) | given)
    numbers = _given(args, HYPERPARAMETERS)
    if "momentum" in numbers and not isinstance(training.optimizer, SGD):
        raise UserError(f"--momentum goes with --optimizer sgd, not {training.optimizer.type}")
    if (groups := getattr(args, "group", None)) is not None:
        numbers["groups"] = tuple(ParameterGroup.parsed(text) for text in groups)
    return replace(training, optimizer=replace(training.optimizer, **numbers))


def taken_from_file(args: argparse.Namespace, training: TrainingSpec) -> str:
    """For people, what of `training_from` the options alone would not say: ``optimizer adam``.

    The loss is left out: it is printed in any case.
    """
    alone = training_from(args)
    taken = []
    if training.optimizer != alone.optimizer:
        given = _given(args, HYPERPARAMETERS) | ({"groups": 0} if getattr(args, "group", 0) else {})
        taken.append(f"optimizer {_described(training.optimizer, given)}")
    for field in fields(training):
        value = getattr(training, field.name)
        if field.name not in ("loss", "optimizer") and value != getattr(alone, field.name):
            taken.append(f"{field.name.replace('_', ' ')} {value}")
    return ", ".join(taken)


def _given(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The options of these names that were given."""
    values = {name: getattr(args, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _described(optimizer: Optimizer, without: Collection[str]) -> str:
    """An optimizer with those hyperparameters that are not its defaults."""
    usual = type(optimizer)()
    numbers = [
        f"{field.name} {_shown(getattr(optimizer, field.name))}"
        for field in fields(optimizer)
        if field.name not in without
        and getattr(optimizer, field.name) != getattr(usual, field.name)
    ]
    return " with ".join([optimizer.type, *([" and ".join(numbers)] if numbers else [])])


def _shown(value: Any) -> str:
    """A hyperparameter for people."""
    if isinstance(value, tuple):
        return " ".join(group.text for group in value)
    return str(value)
