"""How near simulated iteration times are to measured ones, and where they differ."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from flexlegion.cost.timing import sample_of
from flexlegion.report.text import count, duration, pairs, table

COLUMNS = (
    "strategy",
    "simulated",
    "measured",
    "+-",
    "error",
    "operators",
    "transfers",
    "overhead and waiting",
)


@dataclass(frozen=True)
class Comparison:
    """A strategy's iteration, simulated and measured; all times in ns.

    Parameters
    ----------
    name
        The strategy.
    iteration_time_ns, measured_iteration_time_ns
        An iteration.
    noise_ns
        The spread of the measured times.
    device
        The one that was measured to be the busiest.
    busy_time_ns, measured_busy_time_ns
        How long tasks run on it in an iteration.
    transfer_time_ns
        How long the busiest link is busy in simulation; 0 where all devices share a memory.
    priced_by
        How many tasks each cost model priced.
    reductions
        How many operators are split in what they sum over.
    """

    name: str
    iteration_time_ns: int
    measured_iteration_time_ns: int
    noise_ns: int
    device: str
    busy_time_ns: int
    measured_busy_time_ns: int
    transfer_time_ns: int
    priced_by: Mapping[str, int]
    reductions: int = 0

    @property
    def error(self) -> float:
        """What the simulated time is above the measured one, as a share of the measured one."""
        return self.iteration_time_ns / self.measured_iteration_time_ns - 1

    @property
    def operators_ns(self) -> int:
        """How much longer than simulated the busiest device computes."""
        return self.measured_busy_time_ns - self.busy_time_ns

    @property
    def waiting_ns(self) -> int:
        """How much longer than simulated it idles: the runtime's overhead, and waiting.

        Together with `operators_ns`, this is what the measured iteration takes longer.
        """
        measured = self.measured_iteration_time_ns - self.measured_busy_time_ns
        return measured - (self.iteration_time_ns - self.busy_time_ns)

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "strategy": self.name,
            "iteration_time_ns": self.iteration_time_ns,
            "measured_iteration_time_ns": self.measured_iteration_time_ns,
            "noise_ns": self.noise_ns,
            "error": self.error,
            "busiest_device": self.device,
            "busy_time_ns": self.busy_time_ns,
            "measured_busy_time_ns": self.measured_busy_time_ns,
            "operator_difference_ns": self.operators_ns,
            "transfer_time_ns": self.transfer_time_ns,
            "waiting_difference_ns": self.waiting_ns,
            "priced_by": dict(self.priced_by),
            "split_reductions": self.reductions,
        }


def noise_ns(seconds: Sequence[float]) -> int:
    """The spread of repeated measurements: from the first quartile to the third."""
    return sample_of([round(1e9 * s) for s in seconds]).spread_ns


def kendall_tau(comparisons: Sequence[Comparison]) -> float | None:
    """Kendall's rank correlation of simulated with measured times.

    It is over `clear_orders`.

    Returns
    -------
    float or None
        1 if the simulation orders all of these pairs as they are, -1 if none; None without pairs.
    """
    orders = clear_orders(comparisons)
    return sum(orders) / len(orders) if orders else None


def clear_orders(comparisons: Sequence[Comparison]) -> list[int]:
    """For each pair of strategies: 1 if it is simulated in its order, -1 if not, 0 if as equal.

    Pairs whose measured times differ by no more than the noise of either do not count.
    """
    orders = []
    for a, b in combinations(comparisons, 2):
        measured = a.measured_iteration_time_ns - b.measured_iteration_time_ns
        simulated = a.iteration_time_ns - b.iteration_time_ns
        if abs(measured) > max(a.noise_ns, b.noise_ns):
            agree = (measured > 0) == (simulated > 0)
            orders.append(0 if simulated == 0 else 1 if agree else -1)
    return orders


def summary(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Each strategy, then mean and worst of the errors' absolute values, and Kendall's tau."""
    errors = [abs(comparison.error) for comparison in comparisons]
    return {
        "strategies": [comparison.facts() for comparison in comparisons],
        "mean_error": statistics.mean(errors),
        "worst_error": max(errors),
        "kendall_tau": kendall_tau(comparisons),
        "pairs_compared": len(clear_orders(comparisons)),
    }


def described(comparisons: Sequence[Comparison]) -> str:
    """`summary` for people."""
    figures = summary(comparisons)
    tau, number = figures["kendall_tau"], figures["pairs_compared"]
    correlation = "no times differ by more than noise" if tau is None else f"{tau:.3f}"
    if number:
        of = len(comparisons) * (len(comparisons) - 1) // 2
        correlation += f", over {number} of {count(of, 'pair')} that differ by more than noise"
    totals = [
        ("mean error", f"{figures['mean_error']:.1%}"),
        ("worst error", f"{figures['worst_error']:.1%}"),
        ("Kendall's tau", correlation),
    ]
    return f"{table(COLUMNS, map(_cells, comparisons))}\n{pairs(totals)}"


def _cells(comparison: Comparison) -> tuple[str, ...]:
    return (
        comparison.name,
        duration(comparison.iteration_time_ns),
        duration(comparison.measured_iteration_time_ns),
        duration(comparison.noise_ns),
        f"{comparison.error:+.1%}",
        duration(comparison.operators_ns),
        duration(comparison.transfer_time_ns),
        duration(comparison.waiting_ns),
    )
