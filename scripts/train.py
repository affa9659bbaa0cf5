"""Train a network with a parallelization strategy, on one machine or several.

Run it with the legate command, which starts Legion on the processors that it is given:

    legate --cpus 2 --gpus 0 scripts/train.py --model lenet --data digits --strategy data
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flexlegion import SGD, UserError
from flexlegion.commands import run_command
from flexlegion.data import Dataset, load
from flexlegion.model import History, Model
from flexlegion.optimizers import Optimizer, optimizer_of
from flexlegion.runtime.progress import format_metrics
from flexlegion.strategies import BUILT_IN
from flexlegion.zoo import ZOO, build


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="train.py",
        description="Train a network with a parallelization strategy.",
        epilog="example: legate --cpus 2 --gpus 0 scripts/train.py --model lenet --data digits "
        "--strategy data --epochs 15",
    )
    parser.add_argument("--model", default="lenet", help=f"one of {', '.join(ZOO)}")
    parser.add_argument(
        "--data",
        default="digits",
        help="digits, or a path: a folder of MNIST's IDX files, .npz, .npy (with --labels), .h5",
    )
    parser.add_argument("--labels", help="for .npy data: the labels' file")
    parser.add_argument(
        "--strategy",
        default="data",
        help=f"a strategy file, or one of {', '.join(BUILT_IN)}, random:SEED (default: data)",
    )
    parser.add_argument("--epochs", type=int, default=15, help="default: 15")
    parser.add_argument("--batch-size", type=int, default=32, help="over all devices; default: 32")
    parser.add_argument("--optimizer", default="adam", help="sgd, adam (default) or adamw")
    parser.add_argument("--lr", type=float, help="learning rate; default: the optimizer's")
    parser.add_argument("--momentum", type=float, help="for sgd")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument(
        "--held-out",
        type=float,
        default=0.2,
        help="share of the samples to test on, if the data bring no test set; default: 0.2",
    )
    parser.add_argument("--json", metavar="FILE", help="write the final metrics there")
    parser.add_argument("--save-weights", metavar="FILE", help="write the weights there (.npz)")
    return parser


def _optimizer(args: argparse.Namespace) -> Optimizer:
    chosen = optimizer_of(args.optimizer, args.lr)
    if args.momentum is None:
        return chosen
    if not isinstance(chosen, SGD):
        raise UserError(f"--momentum goes with --optimizer sgd, not {args.optimizer}")
    return SGD(chosen.lr, momentum=args.momentum)


def _data(args: argparse.Namespace) -> tuple[Dataset, Dataset]:
    splits = load(args.data, args.labels)
    if splits.test is not None:
        return splits.train, splits.test
    return splits.train.split(args.held_out, args.seed)


def _metrics(model: Model, history: History, test: dict[str, float]) -> dict[str, Any]:
    seconds = sum(epoch["seconds"] for epoch in history.epochs)
    samples = sum(epoch["samples_per_second"] * epoch["seconds"] for epoch in history.epochs)
    return {
        "accuracy": test["accuracy"],
        "loss": test["loss"],
        "train_accuracy": history.epochs[-1]["accuracy"],
        "train_loss": history.epochs[-1]["loss"],
        "samples_per_second": samples / seconds,
        "seconds": seconds,
        "processors": len(model.machine.devices),
        "ranks": model.machine.ranks,
        "epochs": history.epochs,
    }


def _check(args: argparse.Namespace) -> None:
    """Mistakes that are best found before any data are read."""
    if args.epochs < 1:
        raise UserError(f"--epochs has to be at least 1, but is {args.epochs}")
    if args.seed < 0:
        raise UserError(f"--seed has to be at least 0, but is {args.seed}")
    for path in (args.json, args.save_weights):
        if path is None:
            continue
        if not Path(path).resolve().parent.is_dir():
            raise UserError(f"{path}: its folder does not exist; name a file in one that does")
        if Path(path).is_dir():
            raise UserError(f"{path}: this is a folder; name a file to write")


def _run(argv: Sequence[str] | None) -> None:
    args = _parser().parse_args(argv)
    _check(args)
    train, test = _data(args)
    model = build(args.model, args.batch_size, train.x.shape[1:], train.n_classes, args.seed)
    model.compile(_optimizer(args), ZOO[args.model].loss, ["accuracy"], args.strategy)
    first = model.machine.rank == 0
    if first:
        machine = model.machine
        print(
            f"{args.model}: {len(train)} samples to train, {len(test)} to test; "
            f"{len(machine.devices)} processors on {machine.ranks} rank"
            f"{'s' * (machine.ranks > 1)}; {model.strategy.source}",
            flush=True,
        )
    history = model.fit(train.x, train.y, args.epochs)
    values = model.evaluate(test.x, test.y)
    metrics = _metrics(model, history, values)
    weights = model.get_weights() if args.save_weights else {}
    model.close()
    if not first:
        return
    rate = f"{metrics['samples_per_second']:,.0f} samples/s in training"
    print(f"test  {format_metrics(values)}  {rate}", flush=True)
    _write(args, metrics, weights)


def _write(args: argparse.Namespace, metrics: dict[str, Any], weights: dict[str, Any]) -> None:
    """Write the files that were asked for."""
    try:
        if args.json:
            Path(args.json).write_text(json.dumps(metrics, indent=2) + "\n")
        if args.save_weights:
            np.savez(args.save_weights, allow_pickle=False, **weights)
    except OSError as e:
        raise UserError(f"the results cannot be written: {e}") from None


if __name__ == "__main__":
    status = run_command(_run)
    if status != 0:
        # Legate would go on to its own shutdown, which on several ranks waits for the others.
        sys.stdout.flush()
        os._exit(status)
