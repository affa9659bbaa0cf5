"""``flexlegion report``: everything about a strategy, as a page and as a picture."""

from __future__ import annotations

import argparse

from flexlegion.base.errors import UserError
from flexlegion.cli.command import Commands, add_command, answer
from flexlegion.cli.network import (
    add_json_option,
    add_setting_options,
    asked_of_strategy,
)
from flexlegion.cli.outputs import output
from flexlegion.known_strategies.registry import strategy_names


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "report",
        "show a strategy as a page: times, graph, devices, timeline, memory, links, and why",
        "report expert --model lenet --machine p100x4 --out lenet.html",
        _run,
    )
    parser.add_argument("strategy", help=f"a strategy file, or one of {strategy_names()}")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=output("report"),
        help="the page to write (.html); it needs no network",
    )
    parser.add_argument(
        "--svg",
        metavar="FILE",
        type=output("picture"),
        help="write the graph by layers as a picture, for papers",
    )
    parser.add_argument(
        "--measured",
        metavar="FILE",
        help="a timeline that 'flexlegion train --timeline' wrote, shown beside the simulated one",
    )
    add_setting_options(parser, from_file=True)
    add_json_option(parser)


def _run(args: argparse.Namespace) -> None:
    from flexlegion.analysis.report import report_on

    if args.out is None and args.svg is None:
        raise UserError("nothing to write; give --out FILE, --svg FILE, or both")
    result = report_on(**asked_of_strategy(args), measured=args.measured)
    written = {}
    if args.out is not None:
        result.save(args.out)
        written["out"] = args.out
    if args.svg is not None:
        result.picture.save(args.svg)
        written["svg"] = args.svg
    answer(args, result.facts() | written, f"{result}\n\nwrote {', '.join(written.values())}")
