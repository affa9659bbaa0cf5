"""Options of the commands that use a trained model, and the model with its weights."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import note, printable
from flexlegion.cli.how_trained import add_computing_options, add_loss_option
from flexlegion.cli.launch import add_launch_options
from flexlegion.cli.network import add_json_option
from flexlegion.cli.training import (
    Prepared,
    add_data_options,
    add_strategy_option,
    check_model,
    metrics_for,
    prepared,
)
from flexlegion.graph.fingerprint import Fingerprint, difference
from flexlegion.model.model import Model
from flexlegion.networks.network import Network
from flexlegion.objective.optimizers import DEFAULT_OPTIMIZER, EMA, optimizer_of
from flexlegion.training.checkpoints.files import MANIFEST, Checkpoint, folders, newest_whole


def add_trained_options(parser: argparse.ArgumentParser, labelled: bool = True) -> None:
    """``--model``, ``--weights``, ``--data`` and more; `labelled`: also what labels are for."""
    add_data_options(parser, labelled)
    parser.add_argument(
        "--weights",
        metavar="FILE",
        help="a checkpoint, a folder of checkpoints (the newest is taken), or an .npz or "
        ".safetensors file; of an imported model also PyTorch's or Hugging Face's; default: those "
        "that an imported model has",
    )
    parser.add_argument(
        "--averages",
        action="store_true",
        help="the moving averages of weights that a checkpoint has, if it was trained with --ema",
    )
    add_strategy_option(parser)
    if labelled:
        add_loss_option(parser)
    add_computing_options(parser)
    # What only matters to training.
    parser.set_defaults(augment=False, **({} if labelled else {"held_out": None}))
    add_launch_options(parser)
    add_json_option(parser)


def check_trained(args: argparse.Namespace) -> None:
    """Mistakes that are best found before Legion starts."""
    check_model(args)
    if args.seed < 0:
        raise UserError(f"--seed has to be at least 0, but is {args.seed}")
    if args.averages and args.weights is None:
        raise UserError("--averages goes with --weights, which names a checkpoint")
    if args.weights is not None and not os.path.exists(args.weights):
        raise UserError(f"{printable(args.weights)}: there is no such file of weights")


def trained(args: argparse.Namespace, labelled: bool = True) -> tuple[Prepared, str]:
    """The model that the options say, compiled and with its weights, and its data.

    Parameters
    ----------
    args
        Of `add_trained_options`.
    labelled
        Whether labels are needed.

    Returns
    -------
    Prepared
        Its network's model can evaluate and predict.
    str
        Where the weights are from.

    Raises
    ------
    UserError
        If there is no such model, or no weights are given for a model that has none of its own.
    """
    ready = prepared(args, labelled)
    model = ready.network.model
    if args.weights is None and model.origin is None:
        raise UserError(
            f"{args.model} has its initial weights alone, with which nothing was trained; give "
            "--weights: a checkpoint, or a file of weights"
        )
    # Updates never run, so an optimizer that keeps no states saves memory.
    training = replace(ready.network.training, optimizer=optimizer_of(DEFAULT_OPTIMIZER))
    model.compile(
        metrics=metrics_for(ready.network.graph), strategy=ready.strategy, **vars(training)
    )
    if args.weights is None:
        return ready, "the weights that it was imported with"
    weights = _newest(Path(args.weights))
    model.load_weights(weights, averages=args.averages)
    if model.machine.rank == 0:
        _tell_differences(weights, model, args.averages)
    return ready, f"{'averaged ' if args.averages else ''}weights of {weights}"


def _newest(path: Path) -> Path:
    """Of a folder of checkpoints the newest that is whole, which is then named; else the path."""
    if path.is_dir() and folders(path):
        newest = newest_whole(path)
        assert newest is not None  # or it would have raised
        return newest.folder
    return path


def _tell_differences(path: Path, model: Model, averaged: bool) -> None:
    """Tell if a checkpoint's operators are not the model's, or what else it has to evaluate."""
    if not (path / MANIFEST).exists():
        return
    checkpoint = Checkpoint(path)
    if not averaged and any(key.endswith(f"/{EMA}") for key in checkpoint):
        note(f"{path}: it has moving averages of the weights, too; --averages takes these")
    there = Fingerprint(checkpoint.state["operators"])
    here = Fingerprint.of(model.plan.graph)
    if there.value != here.value:
        note(
            f"{path}: it was trained as another network: {difference(there, here)}; its weights "
            "are used all the same"
        )


def computed_by(network: Network) -> dict[str, Any]:
    """What computed, for JSON; nothing of how it might be trained."""
    ours = ("optimizer", "hyperparameters", "micro_batches")
    its = {name: value for name, value in network.about().items() if name not in ours}
    program = network.model.about()
    return its | {
        name: program[name] for name in ("seed", "strategy", "devices", "threads", "ranks")
    }
