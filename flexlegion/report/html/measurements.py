"""Pages of what was measured on a machine: `flexlegion accuracy` and `flexlegion tune`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from flexlegion.report.html.page import page

Json = dict[str, Any]


def accuracy_page(title: str, facts: Mapping[str, Any]) -> str:
    """How near simulated iterations are to measured ones.

    Parameters
    ----------
    title
        What was measured, on which machine.
    facts
        As ``flexlegion accuracy --json`` prints them.
    """
    rows = facts["strategies"]
    points = [(row["measured_iteration_time_ns"], row["iteration_time_ns"]) for row in rows]
    scale = _scale([time for point in points for time in point])
    dots = [
        {
            "name": row["strategy"],
            "x": scale.place(measured),
            "y": 1000 - scale.place(simulated),
            "row": row,
        }
        for row, (measured, simulated) in zip(rows, points, strict=True)
    ]
    values = {
        "title": title,
        "facts": facts,
        "dots": dots,
        "ticks": scale.ticks(),
        "most": max(max(point) for point in points),
        "band": 1000 * math.log(1.3) / scale.length,
    }
    return page("accuracy.html", values, {"facts": facts})


def tune_page(title: str, facts: Mapping[str, Any]) -> str:
    """Which strategies were tried in training, and which was chosen, and why.

    Parameters
    ----------
    title
        What was tuned, on which machine.
    facts
        As ``flexlegion tune --json`` prints them.
    """
    finalists = facts["finalists"]
    baseline = next(f for f in finalists if f["name"] == facts["baseline"])
    chosen = next(f for f in finalists if f["name"] == facts["chosen"])
    speedups = [s for f in finalists for s in f.get("speedups", ())]
    low, high = min([0.9, *speedups]), max([1.1, *speedups])
    times = [f[key] for f in finalists for key in _TIMES]
    values = {
        "title": title,
        "facts": facts,
        "chosen": chosen,
        "kept": chosen is baseline,
        "speedup": baseline["measured_iteration_time_ns"] / chosen["measured_iteration_time_ns"],
        "most": max(1, *times),
        "low": low,
        "high": high,
        "place": lambda speedup: 1000 * (speedup - low) / (high - low),
    }
    return page("tune.html", values, {"facts": facts})


_TIMES = ("iteration_time_ns", "measured_iteration_time_ns")


_LABEL_WIDTH = 125  # of "100.0 ms" in the units of the accuracy page's picture


class _Scale:
    """Times by their logarithms, from 0 to 1000."""

    def __init__(self, low: float, high: float) -> None:
        self.low = math.log(low)
        self.length = math.log(high) - self.low

    def place(self, time: float) -> float:
        return 1000 * (math.log(max(time, 1)) - self.low) / self.length

    def ticks(self) -> list[Json]:
        """Times of one digit within the scale: 1, 2 and 5, or as few that labels are apart."""
        low, high = math.exp(self.low), math.exp(self.low + self.length)
        last = math.ceil(math.log10(high))
        for digits, stride in ((1, 2, 5), 1), ((1,), 1), ((1,), 2), ((1,), 3):
            steps = range(max(0, math.floor(math.log10(low))), last + 1, stride)
            times = [digit * 10**step for step in steps for digit in digits]
            places = [(t, self.place(t)) for t in times if low <= t <= high]
            if all(b - a >= _LABEL_WIDTH for (_, a), (_, b) in pairwise(places)):
                break
        return [{"ns": t, "at": at} for t, at in places]


def _scale(times: Sequence[int]) -> _Scale:
    return _Scale(max(1, min(times)) / 1.5, max(2, max(times)) * 1.5)
