"""Options of training scripts: data and sizes, the optimizer, how its learning rate changes."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

from flexlegion.data.dataset import Dataset, Splits
from flexlegion.data.images import ImageFolder
from flexlegion.data.made_up import NAME as SYNTHETIC
from flexlegion.data.tasks import SAMPLE, Request, load_for, network_sizes
from flexlegion.errors import UserError
from flexlegion.graph import Graph, Operator
from flexlegion.losses import losses_of
from flexlegion.ops.losses import SoftmaxCrossEntropy
from flexlegion.optimizers import SGD, Optimizer, optimizer_of
from flexlegion.precision import DEFAULT, PRECISIONS
from flexlegion.schedules import (
    Schedule,
    constant,
    cosine,
    exponential,
    inverse_sqrt,
    step_decay,
    with_warmup,
)
from flexlegion.zoo import ZooEntry

BATCH_SIZE = 32
SCHEDULES = ("constant", "step", "exponential", "cosine", "inverse-sqrt")
DECAY = 0.1


def metrics_for(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Metrics that go with each loss of a graph, by the outputs' names."""
    return {name: _metrics_for(loss) for name, loss in losses_of(graph).items()}


def _metrics_for(loss: Operator) -> tuple[str, ...]:
    if not isinstance(loss.kind, SoftmaxCrossEntropy):
        return ("mean_absolute_error",)
    if len(loss.output.shape) > 1:  # of each step of a sequence
        return ("accuracy", "perplexity")
    return ("accuracy", "top_5_accuracy") if loss.inputs[0].shape[-1] > 5 else ("accuracy",)


def batch_size_of(args: argparse.Namespace, entry: ZooEntry) -> int:
    """``--batch-size``; where that is not given, what goes with ``--data``."""
    if args.batch_size is not None:
        return int(args.batch_size)
    return entry.batch_size if args.data == SYNTHETIC else BATCH_SIZE


def data_and_sizes(
    entry: ZooEntry, given: Mapping[str, Any], request: Request
) -> tuple[Splits[Dataset] | Splits[ImageFolder], dict[str, Any]]:
    """The data that are asked for, and the sizes of a network that fits them.

    Parameters
    ----------
    entry
        Of the network.
    given
        Sizes that the user gave.
    request
        Which data.

    Raises
    ------
    UserError
        If there are no such data, or they do not fit.
    """
    defaults = entry.sample_sizes if request.source in (SAMPLE, "digits") else {}
    splits = load_for(entry.task, entry.sizes | defaults | dict(given), request)
    return splits, defaults | network_sizes(entry.task, splits.train, given)


def add_optimizer_options(parser: argparse.ArgumentParser) -> None:
    """``--optimizer``, ``--lr``, ``--schedule`` and what goes with them."""
    parser.add_argument("--optimizer", default="adam", help="sgd, adam (default) or adamw")
    parser.add_argument("--lr", type=float, help="learning rate; default: the optimizer's")
    parser.add_argument("--momentum", type=float, help="for sgd")
    parser.add_argument("--weight-decay", type=float, help="default: the optimizer's")
    parser.add_argument(
        "--clip-norm", type=float, help="scale gradients down to this norm, of all together"
    )
    parser.add_argument(
        "--schedule",
        default="constant",
        help=f"how the learning rate changes: one of {', '.join(SCHEDULES)} (default: constant)",
    )
    parser.add_argument(
        "--warmup", type=int, metavar="STEPS", help="steps over which the rate rises from 0"
    )
    parser.add_argument(
        "--decay",
        type=float,
        metavar="FACTOR",
        help=f"for step and exponential: what an epoch's decay multiplies with; default: {DECAY}",
    )
    parser.add_argument(
        "--decay-after", type=int, metavar="EPOCHS", help="for step: before the first; default: 1"
    )
    parser.add_argument(
        "--decay-every", type=int, metavar="EPOCHS", help="for step: between two; default: 1"
    )


def add_precision_option(parser: argparse.ArgumentParser) -> None:
    """``--precision``."""
    parser.add_argument(
        "--precision",
        default=DEFAULT,
        help=f"how GPUs compute products: one of {', '.join(PRECISIONS)} (default: {DEFAULT})",
    )


def optimizer_from(args: argparse.Namespace) -> Optimizer:
    """The optimizer that the options say.

    Raises
    ------
    UserError
        If there is no such optimizer, or a number is out of range.
    """
    chosen = optimizer_of(args.optimizer, args.lr)
    if args.momentum is not None and not isinstance(chosen, SGD):
        raise UserError(f"--momentum goes with --optimizer sgd, not {args.optimizer}")
    names = ("momentum", "weight_decay", "clip_norm")
    given: dict[str, Any] = {name: getattr(args, name) for name in names}
    return dataclasses.replace(
        chosen, **{name: value for name, value in given.items() if value is not None}
    )


def schedule_from(args: argparse.Namespace, steps_per_epoch: int) -> Schedule:
    """The schedule that the options say; it ends with the last of ``--epochs``.

    Raises
    ------
    UserError
        If there is no such schedule, or an option does not go with it.
    """
    kind, warmup = args.schedule, args.warmup
    if kind not in SCHEDULES:
        raise UserError(f"unknown schedule '{kind}'; choose one of {', '.join(SCHEDULES)}")
    for option, kinds in (
        ("decay", ("step", "exponential")),
        ("decay_after", ("step",)),
        ("decay_every", ("step",)),
    ):
        if getattr(args, option) is not None and kind not in kinds:
            raise UserError(
                f"--{option.replace('_', '-')} goes with --schedule {' or '.join(kinds)}, "
                f"not {kind}"
            )
    if kind == "inverse-sqrt":
        if warmup is None:
            raise UserError("--schedule inverse-sqrt needs --warmup STEPS")
        return inverse_sqrt(warmup)
    factor = DECAY if args.decay is None else args.decay
    schedule: Schedule = constant
    if kind == "step":
        after = 1 if args.decay_after is None else args.decay_after
        every = 1 if args.decay_every is None else args.decay_every
        schedule = step_decay(steps_per_epoch, factor, after=after, every=every)
    elif kind == "exponential":
        schedule = exponential(steps_per_epoch, factor)
    elif kind == "cosine":
        schedule = cosine(max(1, args.epochs * steps_per_epoch - (warmup or 0)))
    return schedule if warmup is None else with_warmup(schedule, warmup)
