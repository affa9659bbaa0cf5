"""``flexlegion what-if``: the best strategy on machines with one thing changed."""

from __future__ import annotations

import argparse

from flexlegion.base.quoting import note
from flexlegion.cli.budget import add_budget_options
from flexlegion.cli.command import Commands, add_command, answer
from flexlegion.cli.network import (
    add_json_option,
    add_setting_options,
    asked,
)
from flexlegion.cli.outputs import output
from flexlegion.process.ending import again


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "what-if",
        "how the best strategy changes if one thing of the machine were another: a faster "
        "network, more memory, more nodes",
        "what-if --model lenet --machine p100x8 --vary nodes=1..8 --budget 10s",
        _run,
    )
    add_setting_options(parser)
    parser.add_argument(
        "--vary",
        required=True,
        metavar="WHAT=VALUES",
        help="what, and from where to where, or a list: network.bandwidth=1GB/s..100GB/s, "
        "network.latency=x0.5..x4, link.NAME.bandwidth and .latency, memory=16GB,32GB, "
        "memory.bandwidth, flops=x1..x8, nodes=1..16, gpus, batch",
    )
    parser.add_argument(
        "--points",
        type=int,
        default=7,
        metavar="N",
        help="how many values a range stands for; default 7; whole numbers are doubled instead",
    )
    add_budget_options(parser, "; that of all values together")
    parser.add_argument(
        "--start",
        metavar="NAMES",
        help="where searches start, a list with commas, as of 'flexlegion search'",
    )
    parser.add_argument(
        "--report", metavar="FILE", type=output("report"), help="write the curve as a page"
    )
    add_json_option(parser)


def _run(args: argparse.Namespace) -> None:
    from flexlegion.analysis.what_if import what_if

    start = None if args.start is None else [name.strip() for name in args.start.split(",")]
    result = what_if(
        **asked(args),
        vary=args.vary,
        budget=args.budget,
        points=args.points,
        proposals=args.proposals,
        start=start,
        seed=args.seed,
        chains=args.chains,
    )
    if args.report is not None:
        result.save(args.report)
    answer(args, result.facts(), str(result))
    if result.ended_by is not None:
        note("interrupted; the values after that were not looked at")
        raise again(result.ended_by, "the values until then are told")
