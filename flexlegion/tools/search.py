"""``flexlegion search``: find a fast strategy for a machine (FlexFlow, section 6)."""

from __future__ import annotations

import argparse
from typing import Any

from flexlegion.analysis.search import DEFAULT_STARTS, METHOD, search
from flexlegion.ending import again
from flexlegion.files import check_writable
from flexlegion.searches.mcmc import SearchOptions
from flexlegion.searches.registry import SEARCHES
from flexlegion.strategies.registry import strategy_names
from flexlegion.tools.budget import add_budget_options
from flexlegion.tools.command import Commands, add_command, answer, note
from flexlegion.tools.network import (
    add_json_option,
    add_machine_options,
    add_network_options,
    asked,
)

# What makes a search faster or better, and can be left out to measure its worth.
SWITCHES = {
    "tied": "do not change operators of a kind together at first",
    "descent": "do not descend to a local optimum at the end",
    "cooling": "keep the temperature instead of letting it fall",
    "critical": "do not prefer operators on the critical path",
    "neighbours": "do not propose neighbours' configurations",
    "early-rejection": "simulate every proposal to its end (same result, slower)",
}


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "search",
        "search for a fast strategy and write it as a file; Ctrl-C or SIGTERM ends it early, and "
        "the best strategy so far is written",
        "search --model lenet --machine p100x4 --budget 5s --out s.json",
        _run,
    )
    add_network_options(parser)
    add_machine_options(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="the strategy file to write")
    add_budget_options(parser)
    parser.add_argument(
        "--start",
        metavar="NAMES",
        help=f"where to start, a list with commas of {strategy_names()}, random, and strategy "
        f"files; default: {','.join(DEFAULT_STARTS)}, as far as the batch allows",
    )
    parser.add_argument(
        "--method",
        default=METHOD,
        help=f"how to search: one of {', '.join(SEARCHES)}, or your own; default: {METHOD}",
    )
    for name, text in SWITCHES.items():
        parser.add_argument(f"--no-{name}", action="store_true", help=text)
    parser.add_argument(
        "--trace", metavar="FILE", help="write the timeline found, for https://ui.perfetto.dev"
    )
    add_json_option(parser)


def _run(args: argparse.Namespace) -> None:
    check_writable(args.out, "strategy")
    if args.trace is not None:
        check_writable(args.trace, "trace")
    found = search(
        **asked(args),
        budget=args.budget,
        proposals=args.proposals,
        start=None if args.start is None else [name.strip() for name in args.start.split(",")],
        seed=args.seed,
        chains=args.chains,
        options=SearchOptions(**_switches(args)),
        method=args.method,
    )
    for text in found.notes:
        note(text)
    found.save(args.out)
    if args.trace is not None:
        found.save_trace(args.trace)
    facts = found.facts() | {"out": args.out, "strategy": args.out}
    answer(args, facts, f"{found}\n\nwrote {args.out}")
    if found.interrupted:
        raise again(found.result.ended_by, f"{args.out} has the best strategy so far")


def _switches(args: argparse.Namespace) -> dict[str, Any]:
    names = [name.replace("-", "_") for name in SWITCHES]
    return {name: not vars(args)[f"no_{name}"] for name in names}
