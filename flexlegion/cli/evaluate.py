"""``flexlegion evaluate``: loss and metrics of a trained network over data."""

from __future__ import annotations

import argparse
import math
import time

from flexlegion.base.errors import DivergenceError, UserError
from flexlegion.cli.command import Commands, add_command, answer, logs_on_stderr
from flexlegion.cli.launch import go_under_legate
from flexlegion.cli.trained import add_trained_options, check_trained, computed_by, trained
from flexlegion.cli.training import Prepared, Samples
from flexlegion.console.text import count, wrapped
from flexlegion.sim.throughput import Work, rates
from flexlegion.training.progress import format_metrics

TEST, TRAIN, ALL = PARTS = ("test", "train", "all")


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "evaluate",
        "measure the loss and the metrics of a trained network on data",
        "evaluate --model lenet --weights runs/lenet --data digits",
        _run,
    )
    add_trained_options(parser)
    parser.add_argument(
        "--part",
        choices=PARTS,
        default=TEST,
        help="of the data: what 'train' with the same --data, --held-out and --seed tests with "
        "(default), what it trains on, or all, undivided",
    )


def _run(args: argparse.Namespace) -> None:
    check_trained(args)
    if args.part == ALL and args.held_out is not None:
        raise UserError("--held-out divides the data, and --part all does not; leave one out")
    go_under_legate(args)
    with logs_on_stderr():
        ready, weights = trained(args)
        model, samples = ready.network.model, _part(ready, args.part)
        started = time.perf_counter()
        values = model.evaluate(samples.x, samples.y)
        seconds = time.perf_counter() - started
        machine, facts = model.machine, computed_by(ready.network)
        work = Work.of(model.plan.graph)
        model.close()
    if not math.isfinite(values["loss"]):
        raise DivergenceError(
            f"the loss over {count(samples.number, 'sample')} is {values['loss']}, with {weights}"
        )
    if machine.rank > 0:
        return
    rate = samples.number / seconds
    tokens = None if work.tokens is None else rate * work.tokens / work.samples
    facts |= {
        "weights": args.weights,
        "averages": args.averages,
        "part": args.part,
        "samples": samples.number,
    }
    facts |= {"metrics": values, "seconds": seconds}
    facts |= {"samples_per_second": rate, "tokens_per_second": tokens}
    what = {TEST: "to test with", TRAIN: "to train on", ALL: "in all"}[args.part]
    head = f"{args.model} with {weights}: {count(samples.number, 'sample')} {what}"
    line = f"{format_metrics(values)}  {rates(rate, tokens)}"
    answer(args, facts, f"{wrapped(head, indent=2)}\n{wrapped(line, indent=2)}")


def _part(ready: Prepared, part: str) -> Samples:
    """The samples that ``--part`` names."""
    if part == ALL:
        if ready.whole is None:
            raise UserError(
                "the data bring samples to train on and samples to test with, which are not one; "
                "choose --part test or --part train"
            )
        return ready.whole
    return ready.test if part == TEST else ready.train
