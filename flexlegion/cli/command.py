"""What the commands share: how one is declared, and how it answers."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from flexlegion.base.errors import UserError
from flexlegion.base.phase import end_phase
from flexlegion.base.quoting import printable, printable_lines
from flexlegion.base.suggestions import did_you_mean
from flexlegion.cli.config import add_config_options
from flexlegion.cli.outputs import output

Commands = argparse._SubParsersAction  # argparse has no public name for it


class Parser(argparse.ArgumentParser):
    """Its mistakes are one sentence, which says what somebody who misspelt something meant."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **({"formatter_class": _Formatter} | options))
        self._given: list[str] = []
        # Else what begins like one, -1s, is taken for an option, and not for a value that is wrong.
        self._negative_number_matcher = re.compile(r"-\.?[0-9].*")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is left over here, where the options are known that may have been meant."""
        self._given = list(args or [])
        parsed, others = super().parse_known_args(args, namespace)
        if others:
            word = next((word for word in others if word.startswith("-")), others[0])
            self._refuse(word)
        return parsed, others

    def _refuse(self, word: str) -> NoReturn:
        known = self._option_string_actions
        hint = did_you_mean(word.partition("=")[0], known) if word.startswith("-") else ""
        what = "option" if word.startswith("-") else "argument"
        self.error(f"there is no {what} '{word}' here{hint}")

    def print_help(self, file: Any = None) -> None:
        """As argparse does, but for errors, which that passes over."""
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        """End with a sentence."""
        if message.startswith("the following arguments are required"):
            # Perhaps they are there, but misspelt.
            for word in self._given:
                option = word.partition("=")[0]
                if re.match("--.", word) and not any(
                    name.startswith(option) for name in self._option_string_actions
                ):
                    self._refuse(word)
        if wrong := re.fullmatch(r"(?s)argument (.*): invalid choice: '(.*)' \(.* (.*)\)", message):
            where, word, _ = wrong.groups()
            names = re.findall(r"[\w-]+", message.rpartition("choose from ")[2])
            what = "command" if where in ("command", "action") else where
            message = (
                f"{what} '{word}' does not exist{did_you_mean(word, names)}; choose one of "
                f"{', '.join(names)}"
            )
        if wrong := re.fullmatch(r"(?s)argument (.*): invalid (int|float) value: (.*)", message):
            where, kind, word = wrong.groups()
            what = "a whole number" if kind == "int" else "a number"
            message = f"{where} has to be {what}, but is {word}"
        if wrong := re.fullmatch(r"(?s)argument (.*): expected one argument", message):
            message = f"{wrong[1]} needs a value behind it"
        raise UserError(printable(f"{message}; {self.prog} --help says more"))


class _Formatter(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Examples stay on one line, to be copied."""
        if text.startswith("example: "):
            return indent + text
        return super()._fill_text(text, width, indent)


def parser_of(modules: Mapping[str, str], wanted: str | None = None) -> Parser:
    """The parser of the command line.

    Parameters
    ----------
    modules
        For each command its module in flexlegion.cli.
    wanted
        The command that is asked for, of which alone the module is imported; None: all.

    Raises
    ------
    UserError
        If there is no such command.
    """
    parser = Parser(prog="flexlegion")
    if wanted is not None and wanted not in modules:
        what = "option" if wanted.startswith("-") else "command"
        known = [*modules, "--help", "--version"]
        raise UserError(
            f"there is no {what} '{printable(wanted[:40])}'{did_you_mean(wanted, known)}; "
            "flexlegion --help lists the commands"
        )
    commands = parser.add_subparsers(dest="command", required=True)
    names = modules.values() if wanted is None else [modules[wanted]]
    for name in dict.fromkeys(names):
        if name != "help":
            importlib.import_module(f"flexlegion.cli.{name}").add(commands)
    add_config_options(parser)
    return parser


def add_command(
    commands: Commands[argparse.ArgumentParser],
    name: str,
    help_text: str,
    example: str,
    run: Callable[[argparse.Namespace], None],
) -> argparse.ArgumentParser:
    """Declare a command.

    Parameters
    ----------
    commands
        Where it belongs.
    name
        Its name.
    help_text
        What it does, without a capital or a stop.
    example
        Arguments that work as they stand.
    run
        Does it.
    """
    parser = commands.add_parser(
        name,
        help=help_text,
        description=help_text[0].upper() + help_text[1:] + ".",
        epilog=f"example: flexlegion {example}",
    )
    parser.set_defaults(run=run)
    return parser


def add_report_option(parser: argparse.ArgumentParser) -> None:
    """``--report``."""
    parser.add_argument(
        "--report",
        metavar="FILE",
        type=output("report"),
        help="write a page that shows the result (.html)",
    )


def answer(args: argparse.Namespace, facts: dict[str, Any], text: str) -> None:
    """Print the result: with ``--json`` one JSON object, else the text."""
    from flexlegion.base.files import json_text  # which imports numpy

    end_phase()
    print(json_text(facts) if args.json else printable_lines(text.rstrip("\n")))


@contextmanager
def logs_on_stderr() -> Iterator[None]:
    """Meanwhile, what libraries write to standard output, as Legion's logger, goes to the other."""
    sys.stdout.flush()
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(output, sys.stdout.fileno())
        os.close(output)
