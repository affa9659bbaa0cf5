"""``flexlegion search``: find a fast strategy for a machine (FlexFlow, section 6)."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from typing import Any

from flexlegion.base.quoting import note
from flexlegion.cli.budget import add_budget_options
from flexlegion.cli.command import Commands, add_command, answer
from flexlegion.cli.network import (
    add_json_option,
    add_setting_options,
    asked,
)
from flexlegion.cli.outputs import output
from flexlegion.cli.sizes import listed
from flexlegion.graph.operator_type import DimKind
from flexlegion.known_strategies.registry import strategy_names
from flexlegion.process.ending import again
from flexlegion.searches.options import SearchOptions
from flexlegion.searches.registry import ANNEALING, SEARCHES
from flexlegion.strategy.configuration import SPLIT

# What makes a search faster or better, and can be left out to measure its worth.
SWITCHES = {
    option.name: option.metadata["without"]
    for option in fields(SearchOptions)
    if "without" in option.metadata
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
    add_setting_options(parser)
    parser.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        type=output("strategy"),
        help="the strategy file to write",
    )
    add_budget_options(parser)
    parser.add_argument(
        "--start",
        metavar="NAMES",
        help=f"where to start, a list with commas of {strategy_names()}, random, and strategy "
        f"files; default: {','.join(SEARCHES[ANNEALING].starts)}, as far as the batch allows",
    )
    parser.add_argument(
        "--dimensions",
        metavar="KINDS",
        help="which kinds of dimensions may be split, a list with commas of "
        f"{', '.join(kind.value for kind in DimKind if kind in SPLIT)}; default: all",
    )
    parser.add_argument(
        "--space",
        metavar="TARGET",
        help="dtensor or jax: search among the strategies that 'flexlegion export' can write for "
        "it as they are; default: among all",
    )
    parser.add_argument(
        "--search",
        metavar="NAME",
        default=ANNEALING,
        help=f"how to search: one of {', '.join(SEARCHES)}, or your own; 'paper' is the "
        "Metropolis-Hastings algorithm of FlexFlow's section 6, from its starts; default: "
        f"{ANNEALING}",
    )
    parser.add_argument(
        "--most-micro-batches",
        metavar="N",
        type=int,
        help="choose the number of micro-batches, too: of the powers of two up to N; default: as "
        "--micro-batches says",
    )
    for name, text in SWITCHES.items():
        parser.add_argument(f"--no-{name.replace('_', '-')}", action="store_true", help=text)
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=output("trace"),
        help="write the timeline found, for https://ui.perfetto.dev",
    )
    add_json_option(parser)


def _run(args: argparse.Namespace) -> None:
    from flexlegion.analysis.search import search

    found = search(
        **asked(args),
        budget=args.budget,
        proposals=args.proposals,
        start=listed(args.start),
        dimensions=listed(args.dimensions),
        space=args.space,
        seed=args.seed,
        chains=args.chains,
        options=_options(args),
        search=args.search,
        most_micro_batches=args.most_micro_batches,
    )
    for text in found.notes:
        note(text)
    found.save(args.out)
    if args.trace is not None:
        found.save_trace(args.trace)
    facts = found.facts() | {"out": args.out, "strategy": args.out}
    answer(args, facts, f"{found}\n\nwrote {args.out}")
    if found.interrupted:
        text = f"{args.out} has the best strategy so far; --start {args.out} goes on from it"
        raise again(found.result.ended_by, text)


def _options(args: argparse.Namespace) -> SearchOptions | None:
    """None: as usual."""
    off: dict[str, Any] = {name: False for name in SWITCHES if vars(args)[f"no_{name}"]}
    return replace(SearchOptions(), **off) if off else None
