"""What the benchmark of networks found, as tables and as one JSON object."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from common.sides import Side, best, ratios
from common.workloads import Workload

BUSY = 0.15  # share of the machine from which other processes' load is worth a warning
ROWS = 12  # of the table of times


@dataclass
class Comparison:
    """The sides of one network.

    Parameters
    ----------
    work
        What was trained.
    cpus
        Processors of each side but `single`.
    ours, single, team
        Flexlegion on all processors, on one, and on one that has a thread for each core; none if it
        failed.
    theirs
        PyTorch's variants, by group: "as installed", "tuned", "DDP".
    peaks
        GFLOP/s of large matrix products on all processors, of each round.
    failures
        Sides that did not run, and why.
    """

    work: Workload
    cpus: int
    ours: Side | None = None
    single: Side | None = None
    team: Side | None = None
    theirs: dict[str, list[Side]] = field(default_factory=dict)
    peaks: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def sides(self) -> list[Side]:
        """All that ran."""
        ours = [side for side in (self.ours, self.single, self.team) if side is not None]
        return ours + [side for group in self.theirs.values() for side in group]

    def gflops(self, side: Side) -> float:
        """GFLOP/s that a side achieved."""
        return side.median / self.work.batch_size * self.work.flops() / 1e9

    @property
    def peak(self) -> float:
        """The machine's, in GFLOP/s."""
        return max(self.peaks, default=float("nan"))

    def ratios(self) -> dict[str, dict[str, Any]]:
        """How many times as fast we are as the best of each group: the median over rounds."""
        if self.ours is None:
            return {}
        rivals = {group: best(sides) for group, sides in self.theirs.items() if sides}
        if self.single is not None:
            rivals["flexlegion on 1 processor"] = self.single
        if self.team is not None:
            rivals[f"flexlegion on 1 processor of {self.cpus} threads"] = self.team
        paired = {group: ratios(self.ours, rival) for group, rival in rivals.items()}
        return {
            group: {
                "side": rivals[group].name,
                "ratio": statistics.median(values),
                "lowest": min(values),
                "highest": max(values),
            }
            for group, values in paired.items()
        }

    def times(self) -> dict[str, float]:
        """ns of an iteration by operator type and pass, over all processors: medians, falling."""
        if self.ours is None:
            return {}
        rounds = [answer["times_ns"] for answer in self.ours.answers]
        medians = {key: statistics.median(times[key] for times in rounds) for key in rounds[0]}
        return dict(sorted(medians.items(), key=lambda item: -item[1]))

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return {
            "workload": self.work.to_json(),
            "flops": self.work.flops(),
            "peak_gflops": self.peaks,
            "samples_per_second": {side.name: side.rates for side in self.sides},
            "gflops": {side.name: self.gflops(side) for side in self.sides},
            "other_load": {side.name: side.other_load for side in self.sides},
            "ratios": self.ratios(),
            "times_ns": self.times(),
            "failures": self.failures,
        }


def report(comparison: Comparison, console: Console) -> None:
    """Print the tables of a network."""
    work = comparison.work
    sizes = "".join(f", {name} {value}" for name, value in work.sizes.items())
    console.print(f"[bold]{work.network}[/bold] (batch {work.batch_size}{sizes})", highlight=False)
    console.print(_rates(comparison))
    for group, found in comparison.ratios().items():
        of = f"best of PyTorch {group}: {found['side']}" if group in comparison.theirs else group
        console.print(
            f"  {found['ratio']:.2f}x {of} ({found['lowest']:.2f} to {found['highest']:.2f})",
            highlight=False,
        )
    if comparison.times():
        console.print(_times(comparison))
    for failure in comparison.failures:
        console.print(f"[red]failed:[/red] {failure}", highlight=False)
    _warn(comparison.sides, console)
    console.print()


def _rates(comparison: Comparison) -> Table:
    table = Table()
    table.add_column("side")
    for column in ("samples/s, median", "lowest", "highest", "GFLOP/s", "of peak"):
        table.add_column(column, justify="right")
    for side in comparison.sides:
        gflops = comparison.gflops(side)
        processors = 1 if side is comparison.single else comparison.cpus
        peak = comparison.peak * processors / comparison.cpus
        rates = (side.median, min(side.rates), max(side.rates))
        table.add_row(
            side.name, *(f"{rate:,.2f}" for rate in rates), f"{gflops:,.0f}", f"{gflops / peak:.0%}"
        )
    table.caption = f"peak of {comparison.cpus} processors: {comparison.peak:,.0f} GFLOP/s"
    return table


def _times(comparison: Comparison) -> Table:
    """Where our time goes; the rest is what processors wait, and the runtime's own."""
    assert comparison.ours is not None
    total = comparison.work.batch_size / comparison.ours.median * 1e9 * comparison.cpus
    times = comparison.times()
    shown = dict(list(times.items())[:ROWS])
    if others := sum(times.values()) - sum(shown.values()):
        shown["other operators"] = others
    shown["no task"] = total - sum(times.values())
    table = Table(caption="flexlegion: time of an iteration, over all processors")
    table.add_column("operators and pass")
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    for key, ns in shown.items():
        table.add_row(key, f"{ns / 1e6:,.2f}", f"{ns / total:.1%}")
    return table


def _warn(sides: Sequence[Side], console: Console) -> None:
    busy = {side.name: statistics.mean(side.other_load) for side in sides if side.other_load}
    worst = max(busy, key=lambda name: busy[name], default=None)
    if worst is not None and busy[worst] > BUSY:
        console.print(
            f"[yellow]warning:[/yellow] other processes kept the machine busy: {busy[worst]:.0%} "
            f"of it while {worst} ran; the figures above are too low, and ratios uncertain",
            highlight=False,
        )
