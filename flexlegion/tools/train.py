"""``flexlegion train``: train a network with a parallelization strategy."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flexlegion.data import Dataset, ImageFolder, TokenDataset
from flexlegion.data.dataset import divided
from flexlegion.data.made_up import NAME as SYNTHETIC
from flexlegion.data.made_up import made_up
from flexlegion.data.tasks import SAMPLE, Request, in_memory
from flexlegion.data.text import detokenise
from flexlegion.documents import check_writable
from flexlegion.errors import UserError
from flexlegion.losses import add_loss
from flexlegion.model import History, Model
from flexlegion.precision import check_precision
from flexlegion.references import target_of
from flexlegion.report.text import count
from flexlegion.runtime.machine import RunningMachine
from flexlegion.runtime.progress import format_metrics
from flexlegion.strategies import BUILT_IN
from flexlegion.tools.command import Commands, add_command
from flexlegion.tools.launch import add_launch_options, go_under_legate
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


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "train",
        "train a network with a parallelization strategy",
        "train --model lenet --data digits --strategy data --epochs 15",
        _run,
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
    add_launch_options(parser)


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
    if args.augment and args.data == SYNTHETIC:
        raise UserError("--augment goes with folders of images")
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


@dataclass(frozen=True)
class _Data:
    """Samples as `Model.fit` takes them, and how many there are."""

    x: Any
    y: Any
    samples: int

    @classmethod
    def of(cls, data: Dataset | ImageFolder) -> _Data:
        """Those of a data set."""
        data = in_memory(data)
        x, y = (data.x, data.y) if isinstance(data, Dataset) else (data, None)
        return cls(x, y, len(data))


def _made_up(args: argparse.Namespace, model: Model, loss: str) -> tuple[_Data, _Data]:
    """Random samples to train on and to test with."""
    samples = SYNTHETIC_BATCHES * model.batch_size if args.samples is None else args.samples
    graph = add_loss(model.graph, model.graph.operators[-1].output, loss)

    def drawn(samples: int, seed: int) -> _Data:
        return _Data(*made_up(graph, samples, seed), samples)

    return drawn(samples, args.seed), drawn(min(samples, model.batch_size), args.seed + 1)


def _data_and_model(
    args: argparse.Namespace, entry: ZooEntry
) -> tuple[_Data, _Data, Model, Dataset | ImageFolder | None]:
    """What to train on and to test with, and a network that fits it."""
    batch_size = batch_size_of(args, entry)
    sizes = given_sizes(args.size, target_of(args.model))
    if args.data == SYNTHETIC:
        model = build(args.model, batch_size, seed=args.seed, **sizes)
        return *_made_up(args, model, entry.loss), model, None
    languages = (args.source_language, args.target_language)
    request = Request(args.data, args.labels, args.augment, languages, args.seed)
    splits, sizes = data_and_sizes(entry, sizes, request)
    train, test = divided(splits, args.held_out, args.seed)
    model = build(args.model, batch_size, seed=args.seed, **sizes)
    return _Data.of(train), _Data.of(test), model, test


def _bleu(model: Model, test: Dataset | ImageFolder | None) -> float:
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


def _run(args: argparse.Namespace) -> None:
    _check(args)
    go_under_legate(args)
    train_here(args)


def train_here(args: argparse.Namespace) -> None:
    """Do what the options say, in this process."""
    entry = ZOO[args.model]
    optimizer = optimizer_from(args)
    train, test, model, test_set = _data_and_model(args, entry)
    model.compile(
        optimizer,
        entry.loss,
        metrics_for(add_loss(model.graph, model.graph.operators[-1].output, entry.loss)),
        args.strategy,
        schedule=schedule_from(args, -(-train.samples // model.batch_size)),
        precision=args.precision,
    )
    first = model.machine.rank == 0
    if first:
        print(
            f"{args.model}: {train.samples} samples to train, {test.samples} to test; "
            f"{_described(model.machine)}; {model.strategy.source}",
            flush=True,
        )
    history = model.fit(train.x, train.y, args.epochs)
    values = model.evaluate(test.x, test.y)
    if args.bleu:
        values["bleu"] = _bleu(model, test_set)
    metrics = _metrics(model, history, values)
    weights = model.get_weights() if args.save_weights else {}
    timeline = model.timeline(train.x, train.y) if args.timeline else None
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
