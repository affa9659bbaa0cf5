"""``flexlegion explain``: where a strategy leaves data parallelism, and what that saves."""

from __future__ import annotations

import argparse

from flexlegion.analysis import SHOWN
from flexlegion.cli.command import Commands, add_command, answer
from flexlegion.cli.network import (
    add_json_option,
    add_setting_options,
    asked_of_strategy,
)
from flexlegion.known_strategies.registry import strategy_names


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "explain",
        "say where a strategy leaves data parallelism, and what each such choice saves",
        "explain expert --model alexnet --machine p100x4",
        _run,
    )
    parser.add_argument("strategy", help=f"a strategy file, or one of {strategy_names()}")
    add_setting_options(parser, from_file=True)
    parser.add_argument(
        "--top", type=int, default=SHOWN, metavar="N", help=f"show N choices; default: {SHOWN}"
    )
    add_json_option(parser)


def _run(args: argparse.Namespace) -> None:
    from flexlegion.analysis.explain import explain

    result = explain(**asked_of_strategy(args), top=args.top)
    answer(args, result.facts(), str(result))
