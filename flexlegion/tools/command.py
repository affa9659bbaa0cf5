"""What the commands share: how one is declared, and how it answers."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flexlegion.files import json_text
from flexlegion.quoting import printable, printable_lines

Commands = argparse._SubParsersAction  # argparse has no public name for it


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
        "--report", metavar="FILE", help="write a page that shows the result (.html)"
    )


def answer(args: argparse.Namespace, facts: dict[str, Any], text: str) -> None:
    """Print the result: with ``--json`` one JSON object, else the text."""
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


def note(text: str) -> None:
    """Tell the user something beside the result."""
    print(f"note: {printable(text)}", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Tell the user that something is not as it should be."""
    print(f"warning: {printable(text)}", file=sys.stderr, flush=True)
