"""Known strategies beside found ones (FlexFlow, figures 7, 8 and 10)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from flexlegion.analysis.result import Result
from flexlegion.analysis.search import LEAST_SECONDS, Found, found_by
from flexlegion.analysis.setting import AnyMachine, AnyModel, Setting
from flexlegion.analysis.starts import check_size, starts_of
from flexlegion.base.arguments import typed
from flexlegion.base.errors import DoesNotApply, UserError
from flexlegion.console.blocks import Block, Table
from flexlegion.console.progress import ProgressBar
from flexlegion.console.text import count, duration, memory, volume
from flexlegion.known_strategies import named
from flexlegion.known_strategies.registry import STRATEGIES
from flexlegion.objective.training import TrainingOptions
from flexlegion.report.timelines import figures, memory_excess, time_excess
from flexlegion.searches.budget import budget_of, check_search
from flexlegion.searches.options import Budget
from flexlegion.searches.registry import (
    ANNEALING,
    PLACEMENT,
    SEARCHES,
    SPECIAL,
    SearchTask,
    run_search,
)
from flexlegion.searches.result import SearchResult
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.strategy import ResolvedStrategy

KNOWN = ("single", "model", "data", "expert", "optcnn")
FOUND = "found"
COLUMNS = ("strategy", "iteration", "over data", "moved", "computing", "allocated", "MFU")

Json = dict[str, Any]


@dataclass(frozen=True, repr=False)
class Compared(Result):
    """What `compare` returns.

    Attributes
    ----------
    found : Found
        The best strategy that the search found, as `search` returns it.
    strategies : tuple of dict
        For each strategy its figures, as ``--json`` has them: "strategy", "exists", "fits",
        "reason", "speedup" and, where it exists, "iteration_time_ns", "bytes_moved" and so on.
    notes : tuple of str
        What did not go as it should.
    ended_by : KeyboardInterrupt or None
        What ended one of the searches early.
    """

    found: Found
    strategies: tuple[Json, ...]
    notes: tuple[str, ...]
    ended_by: KeyboardInterrupt | None = None

    @property
    def strategy(self) -> ResolvedStrategy:
        """The best that the search found."""
        return self.found.strategy

    def facts(self) -> Json:
        seconds = sum(row.get("seconds", 0.0) for row in self.strategies)
        return self.strategy.told | {"seconds": seconds, "strategies": list(self.strategies)}

    def blocks(self) -> Sequence[Block]:
        rows = self.strategies
        reasons = [f"{row['strategy']}: {row['reason']}" for row in rows if row["reason"]]
        last = (
            f"all times are simulated; {FOUND}: {count(self.found.proposals, 'proposal')} in "
            f"{self.found.seconds:.1f} s from {', '.join(self.found.start_times_ns)}"
        )
        table = Table(COLUMNS, [_cells(row) for row in rows])
        return [str(self.found.setting), table, "\n".join([*reasons, last])]


@typed
def compare(
    model: AnyModel,
    machine: AnyMachine,
    budget: str | float | Budget | None = None,
    *,
    proposals: int | None = None,
    costs: str = "auto",
    profile_db: str | None = None,
    seed: int = 0,
    chains: int | None = None,
    progress: bool = True,
    **training: Unpack[TrainingOptions],
) -> Compared:
    """Compare known strategies with the best placement of whole operators, and the best of all.

    Strategies for networks of a kind ("megatron", "pipeline", "interleaved", "3d", "vocabulary",
    "wide-deep") and for many devices ("optcnn-coarse") are compared where they apply.

    Parameters
    ----------
    model, machine, costs, profile_db
        See `flexlegion.simulate`.
    budget, proposals, seed, chains, progress
        See `flexlegion.search`; each of the two searches gets what known strategies have left of
        the budget.
    **training
        How it is trained, see `flexlegion.simulate`.

    Raises
    ------
    UserError
        If something does not exist or does not fit, or if nothing fits into memory.
    """
    begin = time.monotonic()
    limits = budget_of(budget, proposals)
    check_search(seed, chains)
    setting = Setting.of(
        model,
        machine,
        costs=costs,
        profile_db=profile_db,
        **training,
    )
    problem = setting.problem
    check_size(problem)
    with ProgressBar("known strategies", progress) as bar:

        def prepare(what: str, share: float = 1.0) -> None:
            bar.show(0.75 * share, what)

        rows = known_rows(setting, [*KNOWN, *SPECIAL], prepare)
        starts, notes = starts_of(None, problem, seed, SEARCHES[ANNEALING].starts, None, prepare)
    each = limits
    if limits.seconds is not None:
        left = limits.seconds - (time.monotonic() - begin)
        each = replace(limits, seconds=max(LEAST_SECONDS, left))

    def searched(search: str, label: str) -> SearchResult:
        with ProgressBar(label, progress) as bar:
            task = SearchTask(problem, starts, each, seed, chains, progress=bar.search)
            return run_search(search, task)

    result = searched(ANNEALING, "search")
    ended_by = result.ended_by
    if result.interrupted:
        rows.append(
            {"strategy": PLACEMENT} | _missing("not searched for, because of the interrupt")
        )
        notes += (f"interrupted; '{FOUND}' is the best strategy until then",)
    else:
        try:
            placed = searched(PLACEMENT, PLACEMENT)
        except UserError as e:
            rows.append({"strategy": PLACEMENT} | _missing(str(e)))
        else:
            rows.append(_searched(PLACEMENT, placed, setting))
            ended_by = placed.ended_by
            if placed.interrupted:
                notes += (f"interrupted; '{PLACEMENT}' is the best strategy until then",)
    rows.append(_searched(FOUND, result, setting))
    _add_speedups(rows)
    return Compared(found_by(setting, result, limits, seed), tuple(rows), notes, ended_by)


def known_rows(
    setting: Setting, names: Sequence[str], tell: Callable[[str, float], None]
) -> list[Json]:
    """The figures of known strategies, or why they cannot run; without those that do not apply.

    Parameters
    ----------
    setting
        Model and machine.
    names
        Theirs.
    tell
        Is told which one comes next, and the share that is done.
    """
    rows = []
    for number, name in enumerate(names):
        tell(name, number / len(names))
        try:
            rows.append(_known_row(name, setting))
        except DoesNotApply as e:  # the network has nothing of the kind that it splits
            if name in KNOWN:
                rows.append({"strategy": name} | _missing(str(e)))
    return rows


def _known_row(name: str, setting: Setting) -> Json:
    row: Json = {"strategy": name}
    problem = setting.problem
    try:
        strategy = named(name, problem)
    except DoesNotApply:
        raise
    except UserError as e:
        return row | _missing(str(e))
    if name == "expert":
        row["same_as"] = _same_as(strategy, problem)
    return row | _figures(strategy, setting)


def _same_as(strategy: ResolvedStrategy, problem: Problem) -> str | None:
    """Which one of the other built-in strategies the experts' is, for this network."""
    for name in STRATEGIES:
        entry = STRATEGIES[name]
        if name != "expert" and not entry.needs_costs and not entry.takes_seed:
            try:
                if named(name, problem) == strategy:
                    return name
            except UserError:
                continue
    return None


def _searched(name: str, result: SearchResult, setting: Setting) -> Json:
    return {
        "strategy": name,
        "proposals": result.proposals,
        "seconds": result.seconds,
        "local_optimum": result.local_optimum,
    } | _figures(result.strategy, setting)


def _figures(strategy: ResolvedStrategy, setting: Setting) -> Json:
    timeline = full(setting.problem, strategy)
    reason = memory_excess(strategy, timeline) or time_excess(timeline)
    rate = setting.throughput(timeline.iteration_time_ns)
    return {"exists": True, "reason": reason} | figures(timeline) | rate.facts()


def _missing(reason: str) -> Json:
    return {"exists": False, "fits": False, "reason": reason}


def _add_speedups(rows: list[Json]) -> None:
    """Over data parallelism, where that can run."""
    data = next(row for row in rows if row["strategy"] == "data")
    for row in rows:
        comparable = data["fits"] and row["exists"]
        row["speedup"] = (
            data["iteration_time_ns"] / row["iteration_time_ns"] if comparable else None
        )


def _cells(row: Json) -> tuple[str, ...]:
    name = row["strategy"]
    if row.get("same_as"):
        name += f" ({row['same_as']})"
    if row["exists"] and not row["fits"]:
        name += " (does not fit)"
    if not row["exists"]:
        return (name, "impossible", *[""] * (len(COLUMNS) - 2))
    speedup = row["speedup"]
    return (
        name,
        duration(row["iteration_time_ns"]),
        "" if speedup is None else f"{speedup:.2f}x",
        volume(row["bytes_moved"]),
        duration(row["computation_time_ns"]),
        memory(row["allocated_bytes"]),
        f"{row['model_flops_utilisation']:.1%}",
    )
