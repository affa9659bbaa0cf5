"""The command ``flexlegion`` (also ``python -m flexlegion``): works without Legion.

Each command is a module of ``flexlegion.tools``, whose `add` declares it. Standard output has the
result alone; notes, warnings and progress go to standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from flexlegion.commands import run_command
from flexlegion.tools import (
    accuracy,
    checkpoint,
    compare,
    explain,
    machine,
    models,
    plan,
    report,
    search,
    simulate,
    train,
    tune,
)

COMMANDS = (
    models,
    machine,
    search,
    simulate,
    compare,
    explain,
    report,
    plan,
    train,
    checkpoint,
    tune,
    accuracy,
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flexlegion", description="Parallelization strategies for deep-learning training."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        command.add(commands)
    return parser


def _run(argv: Sequence[str] | None) -> None:
    args = _parser().parse_args(argv)
    args.arguments = sys.argv[1:] if argv is None else list(argv)  # to start it elsewhere
    args.run(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(_run, argv)


if __name__ == "__main__":
    sys.exit(main())
