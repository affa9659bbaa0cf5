"""``flexlegion tune``: find the strategy that is really the fastest on the machine that runs."""

from __future__ import annotations

import argparse

from flexlegion.base.errors import UserError
from flexlegion.base.phase import phase
from flexlegion.cli.command import (
    Commands,
    add_command,
    add_report_option,
    answer,
    logs_on_stderr,
)
from flexlegion.cli.how_trained import training_from
from flexlegion.cli.launch import add_launch_options, go_under_legate
from flexlegion.cli.network import add_json_option
from flexlegion.cli.outputs import output
from flexlegion.cli.sizes import listed
from flexlegion.cli.training import add_model_options, check_model, prepared
from flexlegion.machine.running import running_machine
from flexlegion.process.ending import again
from flexlegion.report.html.measurements import tune_page
from flexlegion.report.html.page import save_page
from flexlegion.searches.budget import seconds_of
from flexlegion.strategy.strategy import ResolvedStrategy
from flexlegion.tuner.duel import Rules
from flexlegion.tuner.trials import KNOWN
from flexlegion.tuner.tune import tune

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
    add_model_options(parser)
    parser.add_argument(
        "--out", required=True, type=output("strategy"), help="the strategy file to write"
    )
    parser.add_argument(
        "--budget", default=SEARCH, metavar="TIME", help=f"of the search; default: {SEARCH}"
    )
    parser.add_argument(
        "--start",
        metavar="NAMES",
        help="where the search starts, and what is tried as it is: a list with commas of known "
        f"strategies, your own, and strategy files; default: {', '.join(KNOWN)}",
    )
    parser.add_argument("--finalists", type=int, default=3, help="found strategies to train with")
    _add_rules(parser)
    parser.add_argument("--profile-db", metavar="FILE", help="default: the user's own")
    add_launch_options(parser)
    add_report_option(parser)
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


def _run(args: argparse.Namespace) -> None:
    for option, least in (("rounds", 1), ("finalists", 1), ("seed", 0)):
        if getattr(args, option) < least:
            raise UserError(f"--{option} has to be at least {least}")
    most = max(args.rounds, RULES.max_rounds) if args.max_rounds is None else args.max_rounds
    seconds_of(args.budget, "--budget")
    trial_seconds = seconds_of(args.trial_budget, "--trial-budget")
    Rules(args.gain, args.confidence, args.rounds, most, trial_seconds)
    training_from(args)
    check_model(args)
    go_under_legate(args)
    with logs_on_stderr():
        ready = prepared(args)
        phase("starting Legion")
        machine = running_machine()
        found: list[ResolvedStrategy] = []
        try:
            result = tune(
                ready.network,
                ready.train.x,
                ready.train.y,
                budget=args.budget,
                start=listed(args.start),
                finalists=args.finalists,
                rounds=args.rounds,
                max_rounds=most,
                trial_budget=trial_seconds,
                gain=args.gain,
                confidence=args.confidence,
                profile_db=args.profile_db,
                seed=args.seed,
                on_found=found.append,
            )
        except KeyboardInterrupt as e:
            if not found or machine.rank > 0:
                raise
            found[0].save(args.out)
            raise again(
                e, f"{args.out} has the fastest strategy as simulated, not yet tried in training"
            ) from None
    if machine.rank == 0:
        result.save(args.out)
        text = f"{result}\nwrote {args.out}: {result.chosen}"
        if args.report is not None:
            title = f"{result.network} on {result.machine}"
            save_page(args.report, tune_page(title, result.facts()))
        answer(args, result.facts() | {"out": args.out}, text)
