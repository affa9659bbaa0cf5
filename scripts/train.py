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

from flexlegion import UserError
from flexlegion.commands import run_command
from flexlegion.data import Dataset, ImageFolder, TokenDataset
from flexlegion.data.dataset import divided
from flexlegion.data.synthetic import NAME as SYNTHETIC
from flexlegion.data.tasks import SAMPLE, Request, in_memory
from flexlegion.data.text import detokenise
from flexlegion.documents import check_writable
from flexlegion.model import History, Model
from flexlegion.precision import check_precision
from flexlegion.references import target_of
from flexlegion.report.text import count
from flexlegion.runtime.machine import RunningMachine
from flexlegion.runtime.progress import format_metrics
from flexlegion.strategies import BUILT_IN
from flexlegion.tools.sizes import add_size_option, given_sizes
from flexlegion.tools.training import (
    BATCH_SIZE,
    add_optimizer_options,
    add_precision_option,
    batch_size_of,
    data_and_sizes,
    metrics_for,
    optimizer_from,
    schedule_from,
)
from flexlegion.translate import bleu, greedy
from flexlegion.zoo import ZOO, ZooEntry, build

SYNTHETIC_BATCHES = 4


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="train.py",
        description="Train a network with a parallelization strategy.",
        epilog="example: legate --cpus 2 --gpus 0 scripts/train.py --model lenet --data digits "
        "--strategy data --epochs 15",
    )
    parser.add_argument("--model", default="lenet", help=f"one of {', '.join(ZOO)}")
    add_size_option(parser)
    _add_data_options(parser)
    parser.add_argument(
        "--strategy",
        default="data",
        help=f"a strategy file, or one of {', '.join(BUILT_IN)}, random:SEED (default: data)",
    )
    parser.add_argument("--epochs", type=int, default=15, help="default: 15")
    parser.add_argument(
        "--batch-size",
        type=int,
        help=f"over all devices; default: {BATCH_SIZE}, with synthetic data the network's own",
    )
    add_optimizer_options(parser)
    add_precision_option(parser)
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--bleu", action="store_true", help="translate the test set in the end")
    parser.add_argument("--json", metavar="FILE", help="write the final metrics there")
    parser.add_argument("--save-weights", metavar="FILE", help="write the weights there (.npz)")
    parser.add_argument(
        "--timeline",
        metavar="FILE",
        help="train for a few more iterations, and write what ran when, for "
        "https://ui.perfetto.dev",
    )
    return parser


def _add_data_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        default=SAMPLE,
        help="sample (default): small real data that come along; synthetic: random ones of the "
        "network's own sizes; or a path: a folder of images or of MNIST's IDX files, .npz, .npy "
        "(with --labels), .h5; texts, .tsv, .csv; a parallel corpus's name",
    )
    parser.add_argument("--labels", help="for .npy data: the labels' file")
    parser.add_argument("--samples", type=int, help="how many synthetic samples to train on")
    parser.add_argument(
        "--augment", action="store_true", help="crop and mirror images of folders at random"
    )
    parser.add_argument("--source-language", default="en", help="a corpus's ending; default: en")
    parser.add_argument("--target-language", default="de", help="a corpus's ending; default: de")
    parser.add_argument(
        "--held-out",
        type=float,
        default=0.2,
        help="share of the samples to test on, if the data bring no test set; default: 0.2",
    )


def _check(args: argparse.Namespace) -> None:
    """Mistakes that are best found before any data are read."""
    if args.model not in ZOO:
        raise UserError(f"unknown model '{args.model}'; choose one of {', '.join(ZOO)}")
    check_precision(args.precision)
    if args.epochs < 1:
        raise UserError(f"--epochs has to be at least 1, but is {args.epochs}")
    if args.seed < 0:
        raise UserError(f"--seed has to be at least 0, but is {args.seed}")
    if args.samples is not None and args.data != SYNTHETIC:
        raise UserError(f"--samples goes with --data {SYNTHETIC}")
    if args.bleu and ZOO[args.model].task != "translation":
        raise UserError(f"--bleu goes with networks that translate, and {args.model} does not")
    for path in (args.json, args.save_weights):
        if path is None:
            continue
        if not Path(path).resolve().parent.is_dir():
            raise UserError(f"{path}: its folder does not exist; name a file in one that does")
        if Path(path).is_dir():
            raise UserError(f"{path}: this is a folder; name a file to write")
    if args.timeline is not None:
        check_writable(args.timeline, "timeline")


def _data_and_model(
    args: argparse.Namespace, entry: ZooEntry
) -> tuple[Dataset | ImageFolder, Dataset | ImageFolder, Model]:
    """What to train on and to test with, and a network that fits it."""
    batch_size = batch_size_of(args, entry)
    samples = SYNTHETIC_BATCHES * batch_size if args.samples is None else args.samples
    request = Request(
        args.data,
        args.labels,
        samples,
        min(samples, batch_size),
        args.augment,
        (args.source_language, args.target_language),
        args.seed,
    )
    splits, sizes = data_and_sizes(entry, given_sizes(args.size, target_of(args.model)), request)
    train, test = divided(splits, args.held_out, args.seed)
    return train, test, build(args.model, batch_size, seed=args.seed, **sizes)


def _arrays(data: Dataset | ImageFolder) -> tuple[Any, Any]:
    """Data as `Model.fit` takes them."""
    data = in_memory(data)
    return (data.x, data.y) if isinstance(data, Dataset) else (data, None)


def _bleu(model: Model, test: Dataset | ImageFolder) -> float:
    if not isinstance(test, TokenDataset) or not test.texts:
        raise UserError("--bleu goes with a parallel corpus, which has the translations as text")
    tokens = greedy(model, np.asarray(test.inputs[0], np.int32))
    words = test.vocabularies[1]
    return bleu([detokenise(words.decode(row)) for row in tokens], test.texts)


def _metrics(model: Model, history: History, test: dict[str, float]) -> dict[str, Any]:
    seconds = sum(epoch["seconds"] for epoch in history.epochs)
    samples = sum(epoch["samples_per_second"] * epoch["seconds"] for epoch in history.epochs)
    trained = {f"train_{name}": history.epochs[-1][name] for name in test if name != "bleu"}
    return {
        **test,
        **trained,
        "samples_per_second": samples / seconds,
        "seconds": seconds,
        "processors": len(model.machine.devices),
        "ranks": model.machine.ranks,
        "epochs": history.epochs,
    }


def _described(machine: RunningMachine) -> str:
    devices, ranks = len(machine.devices), count(machine.ranks, "rank")
    gpus = sum(name.startswith("gpu:") for name in machine.devices.names)
    if gpus == 0:
        return f"{devices} processors on {ranks}"
    return f"{count(devices - gpus, 'CPU processor')} and {count(gpus, 'GPU')} on {ranks}"


def _run(argv: Sequence[str] | None) -> None:
    args = _parser().parse_args(argv)
    _check(args)
    entry = ZOO[args.model]
    optimizer = optimizer_from(args)
    train, test, model = _data_and_model(args, entry)
    model.compile(
        optimizer,
        entry.loss,
        metrics_for(entry.task, train.n_classes),
        args.strategy,
        schedule=schedule_from(args, -(-len(train) // model.batch_size)),
        precision=args.precision,
    )
    first = model.machine.rank == 0
    if first:
        print(
            f"{args.model}: {len(train)} samples to train, {len(test)} to test; "
            f"{_described(model.machine)}; {model.strategy.source}",
            flush=True,
        )
    history = model.fit(*_arrays(train), args.epochs)
    values = model.evaluate(*_arrays(test))
    if args.bleu:
        values["bleu"] = _bleu(model, test)
    metrics = _metrics(model, history, values)
    weights = model.get_weights() if args.save_weights else {}
    timeline = model.timeline(*_arrays(train)) if args.timeline else None
    about = {"model": args.model, "strategy": args.strategy, "machine": _described(model.machine)}
    model.close()
    if not first:
        return
    if timeline is not None:
        timeline.save(args.timeline, about)
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
