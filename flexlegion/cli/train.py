"""``flexlegion train``: train a network with a parallelization strategy."""

from __future__ import annotations

import argparse
import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from flexlegion.base.errors import DivergenceError, UserError
from flexlegion.base.files import write_json
from flexlegion.base.phase import phase
from flexlegion.base.quoting import say
from flexlegion.cli.checkpoint import (
    add_checkpoint_options,
    check_checkpoint_options,
    checkpoints_from,
)
from flexlegion.cli.command import Commands, add_command
from flexlegion.cli.following import (
    add_following_options,
    callbacks_from,
    check_following,
    validates,
)
from flexlegion.cli.how_trained import taken_from_file, training_from
from flexlegion.cli.launch import add_launch_options, go_under_legate
from flexlegion.cli.outputs import output
from flexlegion.cli.training import (
    Samples,
    add_model_options,
    add_schedule_options,
    add_strategy_option,
    check_model,
    metrics_for,
    prepared,
    schedule_from,
)
from flexlegion.console.text import count, wrapped
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.data import Dataset, ImageFolder, TokenDataset
from flexlegion.data.text import detokenise
from flexlegion.known_strategies import resolve
from flexlegion.machine.running import RunningMachine
from flexlegion.model.model import Model
from flexlegion.networks.network import Network
from flexlegion.process.ending import Interrupted
from flexlegion.profiling.local import local_memories
from flexlegion.report.timelines import memory_told
from flexlegion.sim.simulator import full
from flexlegion.sim.throughput import Work, rates
from flexlegion.strategy.strategy import Strategy
from flexlegion.training.checkpoints.callback import UnwrittenError
from flexlegion.training.fit import History
from flexlegion.training.progress import format_metrics
from flexlegion.zoo import ZOO
from flexlegion.zoo.translate import bleu, greedy


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "train",
        "train a network with a parallelization strategy",
        "train --model lenet --data digits --strategy data --epochs 15",
        _run,
    )
    add_model_options(parser)
    add_strategy_option(parser)
    parser.add_argument("--epochs", type=int, default=15, help="default: 15")
    add_schedule_options(parser)
    add_checkpoint_options(parser)
    add_following_options(parser)
    parser.add_argument("--bleu", action="store_true", help="translate the test set in the end")
    parser.add_argument(
        "--json", metavar="FILE", type=output("metrics"), help="write the final metrics there"
    )
    parser.add_argument(
        "--save-weights",
        metavar="FILE",
        type=output("weights"),
        help="write the weights there (.npz, or .safetensors if it is called so)",
    )
    parser.add_argument(
        "--timeline",
        metavar="FILE",
        type=output("timeline"),
        help="train for a few more iterations, and write what ran when, for "
        "https://ui.perfetto.dev",
    )
    add_launch_options(parser)


def _check(args: argparse.Namespace) -> None:
    """Mistakes that are best found before any data are read."""
    check_model(args)
    training_from(args)  # the strategy's file may add to it, which is read later
    check_checkpoint_options(args)
    if args.epochs < 1:
        raise UserError(f"--epochs has to be at least 1, but is {args.epochs}")
    if args.seed < 0:
        raise UserError(f"--seed has to be at least 0, but is {args.seed}")
    if args.bleu and (args.model not in ZOO or ZOO[args.model].task != "translation"):
        raise UserError(f"--bleu goes with networks that translate, and {args.model} does not")
    check_following(args)


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
    work = Work.of(model.plan.graph)
    iterations_per_second = samples / seconds / work.samples
    tokens = None if work.tokens is None else work.tokens * iterations_per_second
    return {
        **test,
        **trained,
        "samples_per_second": samples / seconds,
        "tokens_per_second": tokens,
        "flops_per_second_of_device": (
            work.flops * iterations_per_second / len(model.machine.devices)
        ),
        "seconds": seconds,
        "processors": len(model.machine.devices),
        "ranks": model.machine.ranks,
        "epochs": history.epochs,
    }


def _described(machine: RunningMachine) -> str:
    devices, ranks = len(machine.devices), count(machine.ranks, "rank")
    gpus = sum(name.startswith("gpu:") for name in machine.devices.names)
    numbers = machine.threads[: devices - gpus]
    same = len(set(numbers)) == 1
    threads = f"{numbers[0]}" if same else "+".join(map(str, numbers))
    of = f" of {threads} threads" if max(numbers, default=1) > 1 else ""
    if gpus == 0:
        return f"{count(devices, 'processor')}{of} on {ranks}"
    return f"{count(devices - gpus, 'CPU processor')}{of} and {count(gpus, 'GPU')} on {ranks}"


def _run(args: argparse.Namespace) -> None:
    _check(args)
    go_under_legate(args)
    train_here(args)


def train_here(args: argparse.Namespace) -> None:
    """Do what the options say, in this process."""
    ready = prepared(args)
    network, train, test = ready.network, ready.train, ready.test
    model = network.model
    phase("starting Legion, and compiling")
    model.compile(
        metrics=metrics_for(network.graph),
        strategy=ready.strategy,
        schedule=schedule_from(args, -(-train.number // model.batch_size)),
        **vars(network.training),  # each field is an option
    )
    first = model.machine.rank == 0
    stored = _memory(network, ready.strategy)
    if first:
        say(
            f"{args.model}: {train.number} samples to train, {test.number} to test; "
            f"{_described(model.machine)}; {model.strategy.source}; {network.goal}"
        )
        say(wrapped(f"memory  {stored}", indent=8))
        if taken := taken_from_file(args, network.training):
            say(f"as {model.strategy.source} says: {taken}")
        if model.ema is not None:
            say(f"what is validated, tested and saved are averages of weights, ema {model.ema:g}")
    if args.weights:
        model.load_weights(args.weights)
    unwritten = _fit(args, model, train, test)
    with _tested(model):
        values = model.evaluate(test.x, test.y)
        if not args.allow_nan and not math.isfinite(values["loss"]):
            raise DivergenceError(f"the loss on the test data is {values['loss']} after training")
        if args.bleu:
            values["bleu"] = _bleu(model, ready.test_set)
    samples = {"samples": train.number, "test_samples": test.number}
    ran = network.about() | model.about() | samples
    metrics = _metrics(model, model.history, values) | {"ran": ran}
    timeline = model.timeline(train.x, train.y) if args.timeline else None
    about = {"model": args.model, "strategy": args.strategy, "machine": _described(model.machine)}
    model.close()
    if first:
        if timeline is not None:
            timeline.save(args.timeline, about)
        rate = rates(metrics["samples_per_second"], metrics["tokens_per_second"])
        giga = metrics["flops_per_second_of_device"] / 1e9
        rate += f", {giga:,.4g} GFLOP/s a processor in training"
        say(wrapped(f"test  {format_metrics(values)}  {rate}", indent=6))
        if args.json:
            write_json(args.json, metrics, "metrics")
    if unwritten is not None:
        raise unwritten


def _memory(network: Network, strategy: str | Strategy) -> str:
    """What training stores on the machine at hand; all ranks ask together."""
    problem = network.problem(local_memories(), AnalyticCosts())
    resolved = resolve(strategy, network.graph, problem.topology.names)
    return memory_told(full(problem, resolved))


def _tested(model: Model) -> AbstractContextManager[None]:
    """Meanwhile the weights are those that are tested and saved: averages, if there are some."""
    return nullcontext() if model.ema is None else model.averaged()


def _fit(
    args: argparse.Namespace, model: Model, train: Samples, test: Samples
) -> UnwrittenError | None:
    """Train, and write the weights that were asked for, those of interrupted training as well.

    Returns
    -------
    UnwrittenError or None
        Why the last checkpoint is missing: training itself has gone well.
    """
    unwritten = None
    try:
        model.fit(
            train.x,
            train.y,
            args.epochs,
            validation_data=(test.x, test.y) if validates(args) else None,
            callbacks=list(callbacks_from(args)),
            allow_nan=args.allow_nan,
            checkpoint=checkpoints_from(args),
        )
    except Interrupted as end:
        # With a sentence it comes from between two iterations, and so on all ranks.
        if str(end) and _write_weights(args, model):
            end.args = (f"{end}; the weights are in {args.save_weights}",)
        raise
    except UnwrittenError as e:
        unwritten = e
    _write_weights(args, model)
    return unwritten


def _write_weights(args: argparse.Namespace, model: Model) -> bool:
    if args.save_weights:
        with _tested(model):
            model.save_weights(args.save_weights)
    return bool(args.save_weights)
