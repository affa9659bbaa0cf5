"""``flexlegion completion``: a script with which a shell completes commands and options."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.cli.command import Commands, add_command, parser_of
from flexlegion.cli.main import MODULES
from flexlegion.known_strategies.registry import STRATEGIES
from flexlegion.machine.files import machine_names
from flexlegion.objective.losses import LOSSES
from flexlegion.objective.optimizers import OPTIMIZERS
from flexlegion.objective.precision import PRECISIONS, STORAGES
from flexlegion.searches.registry import SEARCHES
from flexlegion.zoo import ZOO

SHELLS = ("bash", "zsh", "fish")

# Options by their names in argparse: what they name, and what may also be a file.
_NAMES: dict[str, Iterable[str]] = {
    "loss": LOSSES,
    "search": SEARCHES,
    "optimizer": OPTIMIZERS,
    "precision": PRECISIONS,
    "storage": STORAGES,
}
_NAMES_AND_FILES: dict[str, Iterable[str]] = {
    "model": ZOO,
    "machine": machine_names(),
    "strategy": STRATEGIES,
    "data": ("digits", "sample", "synthetic"),
}
_FILES = ("hosts", "labels", "out", "profile_db", "save_weights", "timeline", "trace")


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "completion",
        "print a script with which a shell completes commands, options and names; for every new "
        "bash: echo 'eval \"$(flexlegion completion bash)\"' >> ~/.bashrc",
        "completion bash",
        _run,
    )
    parser.add_argument("shell", choices=SHELLS, help="for which shell")


def _run(args: argparse.Namespace) -> None:
    try:
        import shtab
    except ImportError:
        raise UserError(
            "writing the script needs the package shtab, which is not installed; pip install shtab"
        ) from None
    parser = parser_of(MODULES)
    for action in _actions(parser):
        if action.dest in _NAMES_AND_FILES:
            action.complete = _names_and_files(action.dest, [*_NAMES_AND_FILES[action.dest]])
        elif action.dest in _NAMES:
            action.choices = [*_NAMES[action.dest]]
        elif action.dest in _FILES or action.metavar == "FILE":
            action.complete = shtab.FILE
    print(shtab.complete(parser, args.shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[Any]:
    """All that the command and its subcommands take."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in dict.fromkeys(action.choices.values()):
                yield from _actions(command)
        elif action.option_strings or action.nargs != 0:
            yield action


def _names_and_files(what: str, names: Sequence[str]) -> dict[str, Any]:
    """How the shells complete both, in the form that shtab takes."""
    listed = shlex.quote(" ".join(names))
    function = f"_flexlegion_{what}_or_file"
    return {
        "bash": function,
        "zsh": f"{{compadd {' '.join(names)}; _files}}",
        "fish": f"(printf '%s\\n' {' '.join(names)}; __fish_complete_path (commandline -ct))",
        "preamble": {
            "bash": f'{function}() {{ compgen -W {listed} -- "$1"; compgen -f -- "$1"; }}'
        },
    }
