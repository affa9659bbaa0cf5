"""``flexlegion tune``: find the strategy that is really the fastest on the machine that runs."""

from __future__ import annotations

import argparse

from flexlegion.data.made_up import NAME as SYNTHETIC
from flexlegion.data.tasks import SAMPLE, Request
from flexlegion.documents import check_writable
from flexlegion.errors import UserError
from flexlegion.network import Network
from flexlegion.precision import check_precision
from flexlegion.references import load_model, target_of
from flexlegion.runtime.machine import running_machine
from flexlegion.searches.mcmc import Budget
from flexlegion.tools.budget import seconds_of
from flexlegion.tools.command import Commands, add_command, answer, logs_on_stderr
from flexlegion.tools.duel import Rules
from flexlegion.tools.launch import add_launch_options, go_under_legate
from flexlegion.tools.network import add_json_option
from flexlegion.tools.sizes import add_size_option, given_sizes
from flexlegion.tools.training import (
    BATCH_SIZE,
    add_precision_option,
    batch_size_of,
    data_and_sizes,
)
from flexlegion.tuning import tune_network
from flexlegion.zoo import ZOO

RULES = Rules()
SEARCH = "10s"


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "tune",
        "find the strategy that is really the fastest on this machine, by measuring, searching and "
        "training for a moment",
        "tune --model lenet --out s.json",
        _run,
    )
    parser.add_argument("--model", default="lenet", help=f"one of {', '.join(ZOO)}")
    add_size_option(parser)
    parser.add_argument("--out", required=True, help="the strategy file to write")
    parser.add_argument(
        "--data",
        default=SAMPLE,
        help=f"what train will be given, for the network's sizes; default: {SAMPLE}",
    )
    parser.add_argument("--labels", help="for .npy data: the labels' file")
    parser.add_argument(
        "--batch-size",
        type=int,
        help=f"over all devices; default: {BATCH_SIZE}, with synthetic data the network's own",
    )
    parser.add_argument("--optimizer", default="adam", help="sgd, adam (default) or adamw")
    add_precision_option(parser)
    parser.add_argument(
        "--budget", default=SEARCH, metavar="TIME", help=f"of the search; default: {SEARCH}"
    )
    parser.add_argument("--finalists", type=int, default=3, help="found strategies to train with")
    _add_rules(parser)
    parser.add_argument("--profile-db", metavar="FILE", help="default: the user's own")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    add_launch_options(parser)
    add_json_option(parser)


def _add_rules(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rounds",
        type=int,
        default=RULES.rounds,
        help=f"of training with the finalists, at least; default: {RULES.rounds}",
    )
    parser.add_argument(
        "--max-rounds",
        type=int,
        help=f"how many there may be until it is decided; default: {RULES.max_rounds}",
    )
    parser.add_argument(
        "--trial-budget",
        metavar="TIME",
        default=f"{RULES.seconds:g}s",
        help="when to begin no further round beyond --rounds; default: %(default)s",
    )
    parser.add_argument(
        "--gain",
        type=float,
        default=RULES.gain,
        help="by which share a strategy has to be faster than data parallelism; default: "
        "%(default)s",
    )
    parser.add_argument(
        "--confidence",
        type=float,
        default=RULES.confidence,
        help="with which probability none is chosen that is not; default: %(default)s",
    )


def _rules(args: argparse.Namespace) -> Rules:
    most = args.max_rounds
    if most is None:
        most = max(args.rounds, RULES.max_rounds)
    seconds = seconds_of(args.trial_budget, "--trial-budget")
    return Rules(args.gain, args.confidence, args.rounds, most, seconds)


def _run(args: argparse.Namespace) -> None:
    for option, least in (("rounds", 1), ("finalists", 1), ("seed", 0)):
        if getattr(args, option) < least:
            raise UserError(f"--{option} has to be at least {least}")
    rules, budget = _rules(args), Budget(seconds_of(args.budget))
    check_precision(args.precision)
    check_writable(args.out, "strategy")
    network = _network(args)
    network.graph.require_kernels()
    go_under_legate(args)
    with logs_on_stderr():
        result = tune_network(
            network,
            budget=budget,
            finalists=args.finalists,
            rules=rules,
            profile_db=args.profile_db,
            seed=args.seed,
        )
        first = running_machine().rank == 0
    if first:
        result.strategy.save(args.out)
        text = f"{result}\nwrote {args.out}: {result.chosen}"
        answer(args, result.facts() | {"out": args.out}, text)


def _network(args: argparse.Namespace) -> Network:
    """The network that ``train`` would train."""
    if args.model not in ZOO:
        raise UserError(f"unknown model '{args.model}'; choose one of {', '.join(ZOO)}")
    entry = ZOO[args.model]
    sizes = given_sizes(args.size, target_of(args.model))
    if args.data != SYNTHETIC:
        _, sizes = data_and_sizes(entry, sizes, Request(args.data, args.labels, seed=args.seed))
    batch_size = batch_size_of(args, entry)
    model = load_model(args.model, batch_size, sizes)
    return Network.of(model, optimizer=args.optimizer, precision=args.precision)
