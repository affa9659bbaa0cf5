"""What ``flexlegion`` says of itself: an overview of its commands, and versions."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import flexlegion
from flexlegion.console.text import line_width

_ABOUT = (
    "flexlegion trains neural networks in parallel. It searches for a strategy, which says how "
    "each operator is split over the devices of a machine, and trains with it on CPUs and GPUs."
)
_WIDTH = 80


def overview(groups: Mapping[str, Mapping[str, tuple[str, str]]], examples: Sequence[str]) -> str:
    """What it is for, its commands in groups, and examples.

    Parameters
    ----------
    groups
        For each title: the names of commands, each with its module and what it does.
    examples
        Command lines.
    """
    width = min(line_width() or _WIDTH, _WIDTH)
    first = max(len(name) for commands in groups.values() for name in commands)
    lines = [*textwrap.wrap(_ABOUT, width), "", "usage: flexlegion COMMAND [OPTIONS]"]
    for title, commands in groups.items():
        lines += ["", f"{title}:"]
        for name, (_, text) in commands.items():
            start = f"  {name:{first}}  "
            lines += textwrap.wrap(
                text, width, initial_indent=start, subsequent_indent=" " * len(start)
            )
    lines += ["", "Examples:", *(f"  {example}" for example in examples)]
    return "\n".join(lines)


def version() -> str:
    """This package's, and that of the runtime that it is built for; neither is imported."""
    from importlib import metadata

    try:
        legate = metadata.version("legate")
    except metadata.PackageNotFoundError:
        legate = "not installed"
    return f"flexlegion {flexlegion.__version__}, legate {legate}"
