"""What tuning found, for people: the finalists, the rounds, and the reason of the choice."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from flexlegion.console.blocks import Block, Table
from flexlegion.console.text import count, duration

COLUMNS = ("strategy", "simulated", "measured", "speed-up", "interval", "won")
WIDTH = 80


def described(title: str, facts: Mapping[str, Any]) -> list[Block]:
    """A `flexlegion.TuneResult`'s facts, as text at most 80 columns wide.

    Parameters
    ----------
    title
        What was tuned, on which machine.
    facts
        Of the result.
    """
    finalists = facts["finalists"]
    rows = [_row(finalist, finalist["name"] == facts["chosen"]) for finalist in finalists]
    calibration = facts["calibration"]
    return [
        _wrapped(title),
        Table(COLUMNS, rows),
        *_rounds(finalists, facts["baseline"]),
        _wrapped(f"{facts['reason']}."),
        _wrapped(
            f"{count(facts['tasks_measured'], 'task')} measured now; in training, they take "
            f"{calibration['factor']:.2f} times as long, and the runtime "
            f"{calibration['runtime']:.2f} times; "
            f"{count(facts['proposals'], 'proposal')} in {facts['seconds']:.1f} s"
        ),
        _wrapped(f"{facts['rest']['verdict']}."),
    ]


def _row(finalist: Mapping[str, Any], chosen: bool) -> tuple[str, ...]:
    speedup = interval = won = ""
    if "speedups" in finalist:
        speedup = f"{finalist['median_speedup']:.2f}"
        won = f"{finalist['won']}/{finalist['rounds']}"
        if finalist["interval"] is not None:
            interval = "{:.2f} to {:.2f}".format(*finalist["interval"])
    return (
        finalist["name"] + (" *" if chosen else ""),
        duration(finalist["iteration_time_ns"]),
        duration(finalist["measured_iteration_time_ns"]),
        speedup,
        interval,
        won,
    )


def _rounds(finalists: list[dict[str, Any]], baseline: str) -> list[Block]:
    """The speed-ups of each finalist, round by round."""
    tried = [finalist for finalist in finalists if "speedups" in finalist]
    if not tried:
        return []
    width = max(len(finalist["name"]) for finalist in tried) + 2
    lines = [f"speed-up over {baseline} in each round:"]
    for finalist in tried:
        speedups = " ".join(f"{speedup:.2f}" for speedup in finalist["speedups"])
        first = f"{finalist['name']:{width}}"
        lines.append(_wrapped(speedups, first, " " * width))
    return ["\n".join(lines)]


def _wrapped(text: str, first: str = "", following: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=following)
