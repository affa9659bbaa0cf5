"""``flexlegion simulate``: one iteration of a strategy on a machine (FlexFlow, section 5)."""

from __future__ import annotations

import argparse

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import printable, warn
from flexlegion.cli.command import Commands, add_command, answer
from flexlegion.cli.network import (
    add_json_option,
    add_setting_options,
    asked_of_strategy,
    asked_on,
)
from flexlegion.cli.outputs import output
from flexlegion.cli.programs import (
    add_runtime_option,
    add_system_option,
    refuse_for_legion,
    refuse_for_programs,
)
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
        help=f"a strategy file, or one of {strategy_names()} (default: data); with --runtime nccl "
        "also a division in words, as 'tp=4 pp=2 zero=1 again=full', of dp, tp, pp, cp, ep, vpp, "
        "sp, zero and again",
    )
    add_runtime_option(parser)
    add_system_option(parser)
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
    from flexlegion.analysis.program import is_ways, simulate_program
    from flexlegion.analysis.simulate import simulate

    if args.runtime == "nccl":
        refuse_for_programs(
            {
                "--algorithm delta": args.algorithm != "full",
                "--trace": args.trace is not None,
                "--costs measured": args.costs == "measured",
                "--profile-db": args.profile_db is not None,
            }
        )
        in_words = is_ways(args.strategy)
        given = asked_on(args) if in_words else asked_of_strategy(args)
        strategy = given.pop("strategy", args.strategy)
        found = simulate_program(
            given["model"], given["machine"], strategy, system=args.system or "compiled"
        )
        answer(args, found.facts(), str(found))
        return
    refuse_for_legion({"--system": args.system is not None})
    if is_ways(args.strategy):
        raise UserError(
            f"'{printable(args.strategy)}' divides a program of collectives; add --runtime nccl"
        )
    result = simulate(**asked_of_strategy(args), algorithm=args.algorithm)
    if result.reason is not None:
        warn(result.reason)
    facts = result.facts()
    if args.trace is not None:
        result.save_trace(args.trace)
        facts["trace"] = args.trace
    answer(args, facts, str(result))
