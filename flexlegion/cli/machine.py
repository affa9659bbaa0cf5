"""``flexlegion machine list|show|measure``."""

from __future__ import annotations

import argparse
from pathlib import Path

from flexlegion.base.files import write_json
from flexlegion.cli.command import Commands, add_command, answer, logs_on_stderr
from flexlegion.cli.launch import (
    add_launch_options,
    go_under_legate,
)
from flexlegion.cli.network import add_json_option
from flexlegion.cli.outputs import output
from flexlegion.machine.files import parse_machine, shipped
from flexlegion.machine.view import drawing, drawing_json, listing, listing_json


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    machine = add_command(
        commands,
        "machine",
        "list the machines that come with flexlegion, draw one, or measure one's own",
        "machine show p100x8",
        _show,
    )
    actions = machine.add_subparsers(dest="action", required=True)
    add_json_option(
        add_command(
            actions,
            "list",
            "list the machines that come with flexlegion",
            "machine list",
            _list,
        )
    )
    show = add_command(
        actions,
        "show",
        "draw a machine: nodes, devices, switches, links, and routes from its first GPU",
        "machine show p100x8",
        _show,
    )
    show.add_argument(
        "machine", metavar="FILE", help="a machine's name, as in p100x8, or a machine file"
    )
    add_json_option(show)
    measure = add_command(
        actions,
        "measure",
        "measure the machine that this runs on, its ranks and what joins them, into a machine file",
        "machine measure --cpus 2 --out my.json",
        _measure,
    )
    measure.add_argument(
        "--out", metavar="FILE", required=True, type=output("machine file"), help="the machine file"
    )
    measure.add_argument(
        "--nodes",
        type=int,
        help="how many nodes the file is to have; default: as many as were measured",
    )
    add_launch_options(measure)
    add_json_option(measure)


def _list(args: argparse.Namespace) -> None:
    machines = shipped()
    answer(args, listing_json(machines), listing(machines))


def _show(args: argparse.Namespace) -> None:
    from flexlegion.profiling.machines import load_machine

    topology = load_machine(args.machine)
    answer(args, drawing_json(topology), drawing(topology))


def _measure(args: argparse.Namespace) -> None:
    # Files are read without Legion; this needs it.
    from flexlegion.machine.folding import check_nodes
    from flexlegion.machine.running import running_machine
    from flexlegion.profiling.machine_file import measured_document, measured_nodes

    if args.nodes is not None:
        check_nodes(args.nodes, args.nodes)
    go_under_legate(args)
    with logs_on_stderr():
        shown = running_machine().rank == 0
        check_nodes(args.nodes or 1, measured_nodes())
        document = measured_document(args.nodes)
        topology = parse_machine(document, Path(args.out).stem, args.out).topology()
        if shown:
            write_json(args.out, document, "machine file")
    if shown:
        answer(args, drawing_json(topology), f"{drawing(topology)}\nwritten to {args.out}")
