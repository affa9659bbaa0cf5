"""The best strategy on machines with one thing changed: a curve, and where its winner changes.

At each value a search is run, from its usual starts and from what was found at the value before.
Then every strategy that was found is simulated at every other value that it fits, so the best of a
point is never slower than what a neighbour's is there. Two strategies whose times are within
`ALIKE` of each other count as one winner: the curve names a change only where it is worth one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Unpack

from flexlegion.analysis.result import Result
from flexlegion.analysis.setting import (
    AnyMachine,
    AnyModel,
    Setting,
    network_of,
    with_batch,
)
from flexlegion.analysis.starts import starts_of
from flexlegion.base.arguments import typed
from flexlegion.base.errors import UserError
from flexlegion.console.blocks import Block, Table
from flexlegion.console.progress import ProgressBar
from flexlegion.console.text import duration
from flexlegion.known_strategies import AnyStrategy, named
from flexlegion.machine.files import described
from flexlegion.machine.topology import Topology
from flexlegion.machine.variation import Quantity, between, quantities, variation
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingOptions
from flexlegion.profiling.machines import is_local
from flexlegion.report.html.page import page, save_page
from flexlegion.searches.budget import budget_of, check_search
from flexlegion.searches.least_time import least_time
from flexlegion.searches.options import Budget
from flexlegion.searches.registry import ANNEALING, SEARCHES, SearchTask, run_search
from flexlegion.sim.simulator import judge
from flexlegion.strategy.strategy import ResolvedStrategy

# Shares of time by which strategies differ no more than one would care for.
ALIKE = 0.005
# A change of the winner is told to within so many halvings of the step between two values.
HALVINGS = 4
# The share of a budget that searches have; in the rest, what they found is simulated elsewhere.
SEARCHING = 0.75
LEAST_SECONDS = 0.1  # a search has at least so much
_BEFORE = "(before)"  # the start that was found at the value before


@dataclass(frozen=True)
class Point:
    """One value.

    Attributes
    ----------
    value : float
        In the quantity's unit.
    setting : Setting
        Model, machine and costs there.
    own : bool
        Whether it is the machine's own value.
    strategy : ResolvedStrategy or None
        The fastest that is known there; None: nothing fits.
    iteration_time_ns : int or None
        Its simulated time.
    winner : str or None
        Its letter: equal ones are one strategy, or within half a percent of it.
    start : str or None
        From which start it was found.
    known_times_ns : dict
        Of known strategies; None: one that does not fit.
    kept_time_ns : int or None
        Of the strategy that is the fastest at the machine's own value.
    least_time_ns : int
        What any strategy takes at least.
    reason : str or None
        Why there is no strategy.
    """

    value: float
    setting: Setting
    own: bool
    strategy: ResolvedStrategy | None
    iteration_time_ns: int | None
    winner: str | None
    start: str | None
    known_times_ns: Mapping[str, int | None]
    kept_time_ns: int | None
    least_time_ns: int
    reason: str | None = None


@dataclass(frozen=True)
class Change:
    """Where another strategy becomes the fastest.

    Attributes
    ----------
    before, after : str or None
        Letters; None: nothing fits.
    low, high : float
        The values between which it is.
    """

    before: str | None
    after: str | None
    low: float
    high: float


@dataclass(frozen=True, repr=False)
class WhatIf(Result):
    """What `what_if` returns.

    Attributes
    ----------
    network : Network
        What is trained.
    machine : str
        As it was given.
    quantity : Quantity
        What varies.
    points : tuple of Point
        In ascending order.
    changes : tuple of Change
        Of the winner.
    budget : Budget
        Of all searches together; its proposals are those of each chain.
    seed, chains : int
        Of each search.
    seconds : float
        What it took.
    ended_by : KeyboardInterrupt or None
        What ended it early; values after that were not looked at.
    """

    network: Network
    machine: str
    quantity: Quantity
    points: tuple[Point, ...]
    changes: tuple[Change, ...]
    budget: Budget
    seed: int
    chains: int
    seconds: float
    ended_by: KeyboardInterrupt | None = field(default=None, repr=False)

    def facts(self) -> dict[str, Any]:
        return self.network.about() | {
            "machine": self.machine,
            "costs": self.points[0].setting.costs,
            "vary": self.quantity.name,
            "unit": self.quantity.unit,
            "budget": {"seconds": self.budget.seconds, "proposals": self.budget.proposals},
            "seed": self.seed,
            "chains": self.chains,
            "seconds": self.seconds,
            "points": [
                {
                    "value": its.value,
                    "own": its.own,
                    "winner": its.winner,
                    "start": its.start,
                    "iteration_time_ns": its.iteration_time_ns,
                    "known_times_ns": dict(its.known_times_ns),
                    "kept_time_ns": its.kept_time_ns,
                    "least_time_ns": its.least_time_ns,
                    "reason": its.reason,
                }
                for its in self.points
            ],
            "changes": [vars(change) for change in self.changes],
        }

    def blocks(self) -> Sequence[Block]:
        same = self.quantity.same_devices
        columns = ["", self.quantity.name, "fastest", "from start", "data", "at least"]
        rows = [
            [
                "*" if its.own else "",
                self.quantity.told(its.value),
                _told(its.iteration_time_ns),
                its.start or "",
                _told(its.known_times_ns.get("data")),
                duration(its.least_time_ns),
            ]
            for its in self.points
        ]
        if same:
            columns[3:3], columns[6:6] = [""], ["as it is"]
            for row, its in zip(rows, self.points, strict=True):
                row[3:3], row[6:6] = [its.winner or ""], [_told(its.kept_time_ns)]
        if self.quantity.name == "batch":
            columns.append("samples/s")
            for row, its in zip(rows, self.points, strict=True):
                rate = its.iteration_time_ns and its.value * 1e9 / its.iteration_time_ns
                row.append("" if rate is None else f"{rate:,.0f}")
        notes = ["*: the machine as it is"] if any(its.own for its in self.points) else []
        if any(its.kept_time_ns is not None for its in self.points):
            notes.append("as it is: the strategy that is the fastest there")
        reasons = dict.fromkeys(its.reason for its in self.points if its.reason is not None)
        return [
            f"{self.network} on {self.machine}: what if {self.quantity.name} were different",
            Table(columns, rows, texts=(0, 3, 4) if same else (0, 3)),
            "\n".join(filter(None, ["; ".join(notes), *reasons, *self.sentences()])),
        ]

    def sentences(self) -> list[str]:
        """The changes, in words."""
        told = self.quantity.told
        found = []
        for its in self.changes:
            where = f"between {told(its.low)} and {told(its.high)}"
            if its.before is None or its.after is None:
                nothing = "below" if its.before is None else "above"
                found.append(f"{where}: nothing fits {nothing} that")
            else:
                found.append(f"{where}: {its.after} becomes faster than {its.before}")
        if not found and self.quantity.same_devices:
            found.append("one strategy is the fastest at all of these values")
        number = len(self.points)
        searches = "1 search" if number == 1 else f"{number} searches"
        return [*found, f"all times are simulated; {self.seconds:.1f} s for {searches}"]

    def html(self) -> str:
        """A page with the curve."""
        from flexlegion.report.html.curves import curves_view

        lines: dict[str, list[int | None]] = {
            "fastest": [its.iteration_time_ns for its in self.points],
            "data parallelism": [its.known_times_ns.get("data") for its in self.points],
            "the strategy for the machine as it is": [its.kept_time_ns for its in self.points],
            "what any strategy takes at least": [*(its.least_time_ns for its in self.points)],
        }
        values = [(its.value, self.quantity.told(its.value)) for its in self.points]
        shown = {
            "title": f"{self.network} on {self.machine}",
            "what": self.quantity.name,
            "points": self.points,
            "told": self.quantity.told,
            "sentences": self.sentences(),
            "chart": curves_view(values, lines),
            "setting": self.points[0].setting,
        }
        return page("what_if.html", shown, {"facts": self.facts()})

    def save(self, path: str | Path) -> None:
        """Write the page: one HTML file that needs no network.

        Raises
        ------
        UserError
            If it cannot be written there.
        """
        save_page(path, self.html())


def _told(time_ns: int | None) -> str:
    return "-" if time_ns is None else duration(time_ns)


@typed
def what_if(
    model: AnyModel,
    machine: AnyMachine,
    vary: str,
    budget: str | float | Budget | None = None,
    *,
    points: int = 7,
    proposals: int | None = None,
    costs: str = "auto",
    profile_db: str | None = None,
    start: Sequence[AnyStrategy] | None = None,
    seed: int = 0,
    chains: int | None = None,
    progress: bool = True,
    **training: Unpack[TrainingOptions],
) -> WhatIf:
    """How the best strategy and its time change if one thing of the machine were another.

    Parameters
    ----------
    model, costs, profile_db
        See `flexlegion.simulate`.
    machine
        A shipped machine's name, or a machine file's path.
    vary
        What, and its values: ``"network.bandwidth=1GB/s..100GB/s"`` (also ``network.latency``, and
        of a type of links ``link.NAME.bandwidth``, ``link.NAME.latency``), ``"memory=16GB,32GB"``,
        ``"memory.bandwidth=x0.5..x4"``, ``"flops=x0.5..x8"``, ``"nodes=1..16"``, ``"gpus=4,8"``,
        ``"batch=64..1024"``. ``x2`` is twice what it is. The machine as it is is looked at, too.
    budget, proposals, start, seed, chains, progress
        See `flexlegion.search`; the budget is that of all searches together.
    points
        How many values a range stands for; whole numbers are doubled instead.
    **training
        How it is trained, see `flexlegion.simulate`.

    Returns
    -------
    WhatIf
        Printed it is a table; `save` writes a page with the curve.

    Raises
    ------
    UserError
        If something does not exist or does not fit, or if nothing fits at any of the values.

    Examples
    --------
    >>> result = what_if("lenet", "p100x8", "network.bandwidth=x0.5,x2", proposals=20)
    >>> len(result.points)
    3
    """
    begin = time.monotonic()
    limits = budget_of(budget, proposals)
    check_search(seed, chains)
    if isinstance(machine, Topology) or is_local(machine):
        raise UserError(
            "what varies is a machine that a file describes; write this one's by 'flexlegion "
            "machine measure', and give that file"
        )
    network = network_of(model, **training)
    its, gpus = described(machine)
    quantity, values = variation(vary, quantities(its, gpus, network.batch_size), points)

    def setting_of(value: float) -> Setting:
        if quantity.machine is None:
            varied, other, used = with_batch(network, round(value)), its, gpus
        else:
            varied, (other, used) = network, quantity.machine(value)
        setting = Setting.of(varied, other.topology(used), costs=costs, profile_db=profile_db)
        return replace(setting, machine=f"{machine}, {quantity.name} {quantity.told(value)}")

    settings = [setting_of(value) for value in values]  # a wrong one is told before any search
    found: list[_Searched] = []
    ended_by = None
    for number, (value, setting) in enumerate(zip(values, settings, strict=True)):
        share = limits
        if limits.seconds is not None:
            left = SEARCHING * limits.seconds - (time.monotonic() - begin)
            each = max(LEAST_SECONDS, left / (len(values) - number))
            share = replace(limits, seconds=each)
        label = f"{quantity.name} {quantity.told(value)}"
        with ProgressBar(label, progress) as bar:
            task = {"budget": share, "seed": seed, "chains": chains, "progress": bar.search}
            found.append(_search(setting, value, start, found, task))
        _check_costs(found[-1], quantity)
        ended_by = found[-1].ended_by
        if ended_by is not None:
            break
    if all(searched.best is None for searched in found):
        raise UserError(found[-1].reason or "nothing fits at any of these values")
    told, winners = _points(found, quantity)
    deadline = None if limits.seconds is None else begin + limits.seconds
    changes = tuple(
        _change(low, high, winners, quantity, setting_of, deadline)
        for low, high in pairwise(told)
        if low.winner != high.winner or (low.strategy is None) != (high.strategy is None)
    )
    return WhatIf(
        network,
        str(machine),
        quantity,
        tuple(told),
        changes,
        limits,
        seed,
        max(searched.chains for searched in found),
        time.monotonic() - begin,
        ended_by,
    )


def _check_costs(searched: _Searched, quantity: Quantity) -> None:
    """Raise `UserError` if tasks were measured on the devices whose rates vary."""
    if quantity.name not in ("flops", "memory.bandwidth") or searched.best is None:
        return
    if "measured" in searched.setting.problem.priced_by(searched.best):
        raise UserError(
            f"tasks' times were measured on these devices, so they would not follow "
            f"{quantity.name}; take --costs analytic"
        )


@dataclass(frozen=True)
class _Searched:
    """What the search at a value found."""

    value: float
    setting: Setting
    best: ResolvedStrategy | None
    start: str | None
    known_times_ns: Mapping[str, int | None]
    reason: str | None
    time_ns: int | None = None
    chains: int = 0
    ended_by: KeyboardInterrupt | None = None

    def time_of(self, strategy: ResolvedStrategy) -> int | None:
        """Of a strategy, wherever it was found; None: it does not fit here."""
        if strategy is self.best:
            return self.time_ns
        try:
            return judge(self.setting.problem, named(strategy, self.setting.problem)).time_ns
        except UserError:
            return None


def _search(
    setting: Setting,
    value: float,
    specs: Sequence[AnyStrategy] | None,
    before: Sequence[_Searched],
    task: Mapping[str, Any],
) -> _Searched:
    """From the usual starts, and from what the search before found, if it fits here."""
    problem, seed = setting.problem, task["seed"]
    try:
        starts, _ = starts_of(specs, problem, seed, SEARCHES[ANNEALING].starts)
        if before and (last := before[-1]).best is not None:
            with suppress(UserError):  # of other devices, say
                starts[_BEFORE] = named(last.best, problem)
        result = run_search(ANNEALING, SearchTask(problem, starts, **task))
    except UserError as e:
        return _Searched(value, setting, None, None, {}, str(e))
    start = result.start
    if start == _BEFORE:
        start = before[-1].start or start
    known = {name: t for name, t in result.start_times_ns.items() if name != _BEFORE}
    return _Searched(
        value,
        setting,
        result.strategy,
        start,
        known,
        None,
        result.iteration_time_ns,
        result.chains,
        result.ended_by,
    )


def _points(
    found: Sequence[_Searched], quantity: Quantity
) -> tuple[list[Point], dict[str, ResolvedStrategy]]:
    """Every strategy at every value; who wins; and the strategies by letter."""
    strategies: list[tuple[ResolvedStrategy, str | None]] = []
    for searched in found:
        found_here = searched.best
        if found_here is None:
            continue
        known = any(dict(found_here) == dict(other) for other, _ in strategies)
        if not (known and quantity.same_devices):
            strategies.append((found_here, searched.start))
    own = next((searched for searched in found if searched.value == quantity.own), None)
    kept = None  # the number of the strategy for the machine as it is
    if own is not None and own.best is not None and quantity.same_devices:
        kept = next(n for n, (its, _) in enumerate(strategies) if dict(its) == dict(own.best))
    points: list[Point] = []
    letters: dict[int, str] = {}
    last: int | None = None
    for searched in found:
        times: dict[int, int] = {}
        for number, (strategy, _) in enumerate(strategies):
            if quantity.same_devices or strategy is searched.best:
                time_ns = searched.time_of(strategy)
                if time_ns is not None:
                    times[number] = time_ns
        best = min(times, key=times.__getitem__, default=None)
        # Who won before goes on unless another one is faster by more than nothing.
        if best is None or last not in times or times[last] > (1 + ALIKE) * times[best]:
            last = best
        if last is not None and quantity.same_devices:
            letters.setdefault(last, _letter(len(letters)))
        points.append(
            Point(
                value=searched.value,
                setting=searched.setting,
                own=searched.value == quantity.own,
                strategy=None if best is None else strategies[best][0],
                iteration_time_ns=None if best is None else times[best],
                winner=None if last is None else letters.get(last),
                start=None if best is None else strategies[best][1],
                known_times_ns=searched.known_times_ns,
                kept_time_ns=None if kept is None else times.get(kept),
                least_time_ns=least_time(searched.setting.problem).time_ns,
                reason=searched.reason,
            )
        )
    return points, {letter: strategies[number][0] for number, letter in letters.items()}


def _letter(number: int) -> str:
    """A to Z, then AA and so on."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("A") + rest) + text
    return text


def _change(
    low: Point,
    high: Point,
    winners: Mapping[str, ResolvedStrategy],
    quantity: Quantity,
    setting_of: Callable[[float], Setting],
    deadline: float | None,
) -> Change:
    """Between two neighbouring values: by bisection, as long as there is time."""
    a, b = low.value, high.value
    if low.winner is None or high.winner is None or quantity.whole:
        return Change(low.winner, high.winner, a, b)
    for _ in range(HALVINGS):
        if deadline is not None and time.monotonic() >= deadline:
            break
        middle = between(a, b)
        its = _Searched(middle, setting_of(middle), None, None, {}, None)
        before = its.time_of(winners[low.winner])
        after = its.time_of(winners[high.winner])
        if after is not None and (before is None or after < before):
            b = middle
        else:
            a = middle
    return Change(low.winner, high.winner, a, b)
