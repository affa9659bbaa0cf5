"""Curves over one quantity, in a square of 1000 by 1000 with logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from markupsafe import Markup

Json = dict[str, Any]

ROOM = 180  # between two ticks


def curves_view(
    values: Sequence[tuple[float, str]], lines: Mapping[str, Sequence[int | None]]
) -> Json:
    """What the template draws.

    Parameters
    ----------
    values
        In ascending order, with what they are called.
    lines
        By name, a time in ns at each value; None: there is none.
    """
    times = [t for line in lines.values() for t in line if t is not None and t > 0]
    low, high = min(times, default=1), max(times, default=1)
    across = _scale(min((v for v, _ in values if v > 0), default=1.0), values[-1][0])
    up = _scale(low, high)
    return {
        "lines": [
            {"name": name, "number": number, "path": _path(values, line, across, up)}
            for number, (name, line) in enumerate(lines.items())
            if any(t is not None for t in line)
        ],
        "ticks": _apart([{"x": 1000 * across(value), "told": told} for value, told in values]),
        "low": low,
        "high": high,
    }


def _apart(ticks: list[Json]) -> list[Json]:
    """Those whose texts have room, the first and the last among them."""
    shown = ticks[:1]
    for tick in ticks[1:-1]:
        if shown[-1]["x"] + ROOM <= tick["x"] <= ticks[-1]["x"] - ROOM:
            shown.append(tick)
    return [*shown, *ticks[1:][-1:]]


def _scale(low: float, high: float) -> Any:
    """From 0 to 1, in equal ratios; what is not positive is at 0."""
    width = log(high / low) if high > low else 1.0
    return lambda value: log(value / low) / width if value > 0 else 0.0


def _path(
    values: Sequence[tuple[float, str]], line: Sequence[int | None], across: Any, up: Any
) -> Markup:
    """A line, interrupted where there is no time."""
    path, drawn = "", False
    for (value, _), time in zip(values, line, strict=True):
        if time is None:
            drawn = False
            continue
        path += f"{'L' if drawn else 'M'}{1000 * across(value):.1f} {940 - 900 * up(time):.1f}"
        drawn = True
    return Markup(path)  # numbers alone
