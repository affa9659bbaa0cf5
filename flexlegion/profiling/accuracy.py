"""How near simulated iteration times are to measured ones, and where they differ."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from flexlegion.console.text import count, duration, pairs, table, wrapped
from flexlegion.profiling.intervals import Estimate

TIMES = ("strategy", "simulated", "measured", "±", "error", "calibrated")
PARTS = ("strategy", "device", "difference", "tasks", "launches", "waits")


@dataclass(frozen=True)
class Parts:
    """What an iteration on a device consists of; times in ns.

    Parameters
    ----------
    tasks
        Tasks compute.
    launches
        The runtime: it takes the core from tasks, and time passes until a task begins that could.
    waits
        The device waits for others.
    """

    tasks: int
    launches: int
    waits: int

    def minus(self, other: Parts) -> Parts:
        """Part by part."""
        return Parts(
            self.tasks - other.tasks, self.launches - other.launches, self.waits - other.waits
        )


@dataclass(frozen=True)
class Comparison:
    """A strategy's iteration, simulated and measured; all times in ns.

    Parameters
    ----------
    name
        The strategy.
    iteration_time_ns, calibrated_time_ns
        An iteration simulated by times of tasks alone, and after another strategy's training.
    measured
        An iteration measured.
    rounds
        How often.
    device
        The one that was measured to be the busiest.
    simulated_parts, measured_parts
        What the iteration consists of there.
    transfer_time_ns
        How long the busiest link is busy in simulation; 0 where all devices share a memory.
    priced_by
        How many tasks each cost model priced.
    reductions
        How many operators are split in what they sum over.
    """

    name: str
    iteration_time_ns: int
    calibrated_time_ns: int
    measured: Estimate
    rounds: int
    device: str
    simulated_parts: Parts
    measured_parts: Parts
    transfer_time_ns: int
    priced_by: Mapping[str, int]
    reductions: int = 0

    @property
    def measured_ns(self) -> int:
        """An iteration, in whole nanoseconds."""
        return round(self.measured.value)

    @property
    def error(self) -> float:
        """What the simulated time is above the measured one, as a share of the measured one."""
        return self.iteration_time_ns / self.measured_ns - 1

    @property
    def calibrated_error(self) -> float:
        """The same of the calibrated time."""
        return self.calibrated_time_ns / self.measured_ns - 1

    @property
    def difference(self) -> Parts:
        """How much longer than simulated each part was; together, the iteration."""
        return self.measured_parts.minus(self.simulated_parts)

    def facts(self) -> dict[str, Any]:
        """For JSON; an interval of None: there were too few rounds to tell."""
        low, high = self.measured.low, self.measured.high
        return {
            "strategy": self.name,
            "iteration_time_ns": self.iteration_time_ns,
            "calibrated_time_ns": self.calibrated_time_ns,
            "measured_iteration_time_ns": self.measured_ns,
            "measured_interval_ns": [round(low), round(high)] if self.measured.known else None,
            "rounds": self.rounds,
            "error": self.error,
            "calibrated_error": self.calibrated_error,
            "busiest_device": self.device,
            "simulated_parts_ns": asdict(self.simulated_parts),
            "measured_parts_ns": asdict(self.measured_parts),
            "difference_ns": asdict(self.difference),
            "transfer_time_ns": self.transfer_time_ns,
            "priced_by": dict(self.priced_by),
            "split_reductions": self.reductions,
        }


@dataclass(frozen=True)
class Figures:
    """How near simulation is over several strategies.

    Parameters
    ----------
    mean_error, worst_error
        Of the errors' absolute values.
    kendall_tau
        Kendall's rank correlation of simulated with measured times, over `pairs_compared`: 1 if all
        of these are simulated in their order, -1 if none; None without any.
    pairs_compared
        Pairs of strategies whose measured intervals do not overlap.
    """

    mean_error: float
    worst_error: float
    kendall_tau: float | None
    pairs_compared: int


def figures(times: Sequence[tuple[int, Estimate]]) -> Figures:
    """Of simulated and measured times."""
    errors = [abs(simulated / measured.value - 1) for simulated, measured in times]
    orders = clear_orders(times)
    tau = sum(orders) / len(orders) if orders else None
    return Figures(statistics.mean(errors), max(errors), tau, len(orders))


def clear_orders(times: Sequence[tuple[int, Estimate]]) -> list[int]:
    """For each pair of strategies: 1 if it is simulated in its order, -1 if not, 0 if as equal.

    Pairs whose measured intervals overlap do not count.
    """
    orders = []
    for (a, mine), (b, other) in combinations(times, 2):
        if mine.high < other.low or other.high < mine.low:
            agree = (mine.value > other.value) == (a > b)
            orders.append(0 if a == b else 1 if agree else -1)
    return orders


def summary(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Each strategy, then the figures without calibration, and with it."""
    plain = figures([(c.iteration_time_ns, c.measured) for c in comparisons])
    calibrated = figures([(c.calibrated_time_ns, c.measured) for c in comparisons])
    return {
        "strategies": [comparison.facts() for comparison in comparisons],
        **asdict(plain),
        "calibrated": asdict(calibrated),
    }


def described(comparisons: Sequence[Comparison]) -> str:
    """`summary` for people."""
    found = summary(comparisons)
    number, calibrated = found["pairs_compared"], found["calibrated"]
    of = count(len(comparisons) * (len(comparisons) - 1) // 2, "pair")
    rank = "no measured intervals are apart"
    if number:
        rank = (
            f"{found['kendall_tau']:.3f} (calibrated {calibrated['kendall_tau']:.3f}), over "
            f"{number} of {of} whose intervals are apart"
        )
    totals = [
        (title, f"{found[key]:.1%} (calibrated {calibrated[key]:.1%})")
        for title, key in (("mean error", "mean_error"), ("worst error", "worst_error"))
    ]
    return "\n\n".join(
        (
            table(TIMES, map(_times, comparisons)).rstrip("\n"),
            pairs([*totals, ("Kendall's tau", rank)]).rstrip("\n"),
            wrapped(
                "What the measured iteration took longer than the simulated one, on the device "
                "that was busiest:"
            ),
            table(PARTS, map(_parts, comparisons)),
        )
    )


def _times(comparison: Comparison) -> tuple[str, ...]:
    measured = comparison.measured
    return (
        comparison.name,
        duration(comparison.iteration_time_ns),
        duration(comparison.measured_ns),
        f"{measured.width:.1%}" if measured.known else "?",
        f"{comparison.error:+.1%}",
        f"{comparison.calibrated_error:+.1%}",
    )


def _parts(comparison: Comparison) -> tuple[str, ...]:
    difference = comparison.difference
    return (
        comparison.name,
        comparison.device,
        duration(comparison.measured_ns - comparison.iteration_time_ns),
        duration(difference.tasks),
        duration(difference.launches),
        duration(difference.waits),
    )
