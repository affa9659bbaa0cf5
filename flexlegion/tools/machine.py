"""``flexlegion machine list|show``."""

from __future__ import annotations

import argparse

from flexlegion.machine_view import drawing, drawing_json, listing, listing_json
from flexlegion.machines import load_machine, shipped
from flexlegion.tools.command import Commands, add_command, answer
from flexlegion.tools.network import add_json_option


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    machine = add_command(
        commands,
        "machine",
        "list the machines that come with flexlegion, or draw one",
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


def _list(args: argparse.Namespace) -> None:
    machines = shipped()
    answer(args, listing_json(machines), listing(machines))


def _show(args: argparse.Namespace) -> None:
    topology = load_machine(args.machine)
    answer(args, drawing_json(topology), drawing(topology))
