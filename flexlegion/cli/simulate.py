"""``flexlegion simulate``: one iteration of a strategy on a machine (FlexFlow, section 5)."""

from __future__ import annotations

import argparse

from flexlegion.base.quoting import warn
from flexlegion.cli.command import Commands, add_command, answer
from flexlegion.cli.network import (
    add_json_option,
    add_setting_options,
    asked_of_strategy,
)
from flexlegion.cli.outputs import output
from flexlegion.known_strategies.registry import strategy_names
from flexlegion.sim.simulator import ALGORITHMS


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "simulate",
        "simulate a training iteration: its time, bytes moved, memory, load",
        "simulate --model lenet --machine p100x4 --strategy data",
        _run,
    )
    add_setting_options(parser, from_file=True)
    parser.add_argument(
        "--strategy",
        default="data",
        help=f"a strategy file, or one of {strategy_names()} (default: data)",
    )
    parser.add_argument(
        "--algorithm",
        choices=ALGORITHMS,
        default="full",
        help="full (default), or delta: goes from data parallelism to the strategy operator by "
        "operator, each time simulating only what changes, and checks that the result is the same",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=output("trace"),
        help="write the timeline, for https://ui.perfetto.dev",
    )
    add_json_option(parser)


def _run(args: argparse.Namespace) -> None:
    from flexlegion.analysis.simulate import simulate

    result = simulate(**asked_of_strategy(args), algorithm=args.algorithm)
    if result.reason is not None:
        warn(result.reason)
    facts = result.facts()
    if args.trace is not None:
        result.save_trace(args.trace)
        facts["trace"] = args.trace
    answer(args, facts, str(result))
