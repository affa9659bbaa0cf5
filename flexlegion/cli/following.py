"""Options of ``flexlegion train`` that follow training: validation, early stopping, logs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from flexlegion.base.errors import UserError
from flexlegion.cli.outputs import output
from flexlegion.training.callbacks import BestWeights, Callback, EarlyStopping
from flexlegion.training.logs import CSVLog, TensorBoard, WandB


def add_following_options(parser: argparse.ArgumentParser) -> None:
    """``--validate``, ``--early-stopping``, ``--best-weights``, ``--log``, ..."""
    group = parser.add_argument_group("while it trains")
    group.add_argument(
        "--validate", action="store_true", help="evaluate on the test data after each epoch"
    )
    group.add_argument(
        "--early-stopping",
        type=int,
        metavar="N",
        help="end when the loss on the test data has not become better for N epochs",
    )
    group.add_argument(
        "--best-weights",
        metavar="FILE",
        type=output("weights"),
        help="write the weights of the epoch with the lowest loss on the test data there",
    )
    group.add_argument(
        "--log", metavar="FILE", type=output("log"), help="write a line an epoch there (.csv)"
    )
    group.add_argument(
        "--tensorboard", metavar="DIR", help="write logs for TensorBoard there (needs tensorboardX)"
    )
    group.add_argument(
        "--wandb",
        metavar="PROJECT",
        help="log to this project of Weights & Biases (needs wandb); WANDB_MODE=offline keeps it "
        "in the folder wandb",
    )
    group.add_argument(
        "--allow-nan",
        action="store_true",
        help="go on after a loss that is not finite, which otherwise ends training with status 3",
    )


def validates(args: argparse.Namespace) -> bool:
    """Whether to evaluate after each epoch, which others need as well."""
    return bool(args.validate or args.early_stopping is not None or args.best_weights)


def check_following(args: argparse.Namespace) -> None:
    """Raise `UserError` where an option is wrong, as far as can be said early."""
    if args.early_stopping is not None and args.early_stopping < 1:
        raise UserError(f"--early-stopping has to be at least 1, but is {args.early_stopping}")
    list(callbacks_from(args))


def callbacks_from(args: argparse.Namespace) -> Iterator[Callback]:
    """The callbacks that the options ask for."""
    if args.log is not None:
        yield CSVLog(args.log)
    if args.tensorboard is not None:
        yield TensorBoard(args.tensorboard)
    if args.wandb is not None:
        yield WandB(args.wandb)
    if args.best_weights is not None:
        yield BestWeights(args.best_weights)
    if args.early_stopping is not None:
        yield EarlyStopping(patience=args.early_stopping)
