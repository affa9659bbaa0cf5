"""``flexlegion compare``: known strategies beside found ones (FlexFlow, figures 7, 8 and 10)."""

from __future__ import annotations

import argparse
from typing import Any

from flexlegion.documents import check_writable
from flexlegion.errors import UserError
from flexlegion.problem import Problem
from flexlegion.report.progress import ProgressBar
from flexlegion.report.text import count, duration, memory, table, volume
from flexlegion.report.timelines import figures, memory_excess
from flexlegion.searches.mcmc import Budget, SearchResult, search
from flexlegion.searches.placement import placement_only
from flexlegion.simulator import full
from flexlegion.strategies import BUILT_IN
from flexlegion.strategy import Strategy
from flexlegion.tools.budget import add_budget_options, budget_of
from flexlegion.tools.command import Commands, add_command, answer, note
from flexlegion.tools.network import (
    Setting,
    add_json_option,
    add_machine_options,
    add_network_options,
)
from flexlegion.tools.search import found_of, reference_times, starts_of
from flexlegion.tools.strategies import OPTCNN, named

KNOWN = ("single", "model", "data", "expert", OPTCNN)
PLACEMENT, FOUND = "placement", "found"
COLUMNS = ("strategy", "iteration", "over data", "moved", "computation", "memory", "balance")

Json = dict[str, Any]


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "compare",
        "compare known strategies with the best device placement and the best strategy that "
        "searches find",
        "compare --model lenet --machine p100x4 --budget 3s",
        _run,
    )
    add_network_options(parser)
    add_machine_options(parser)
    add_budget_options(parser, "; each of the two searches gets all of it")
    parser.add_argument("--out", metavar="FILE", help="write the strategy found as a file")
    add_json_option(parser)


def _run(args: argparse.Namespace) -> None:
    if args.out is not None:
        check_writable(args.out, "strategy")
    budget = budget_of(args)
    setting = Setting.of(args)
    problem = setting.problem
    rows = [_known(name, problem) for name in KNOWN]
    with ProgressBar("search") as bar:
        starts = starts_of(None, problem, args.seed)
        result = search(problem, starts, budget, args.seed, args.chains, progress=bar.search)
    rows.append(_placement(problem, budget, args, result.interrupted))
    rows.append(_searched(FOUND, result, problem))
    found = found_of(setting, result, reference_times(problem), budget, args.seed)
    if args.out is not None:
        Strategy(result.strategy, args.out, setting.network.found(found)).save(args.out)
    _add_speedups(rows)
    seconds = sum(row.get("seconds", 0.0) for row in rows)
    facts = found | {"seconds": seconds, "strategies": rows}
    lines = [str(setting), "", table(COLUMNS, map(_cells, rows))]
    lines += [f"{row['strategy']}: {row['reason']}" for row in rows if row["reason"]]
    lines.append(
        f"all times are simulated; {FOUND}: {count(result.proposals, 'proposal')} in "
        f"{result.seconds:.1f} s from {', '.join(starts)}"
    )
    answer(args, facts, "\n".join(lines))


def _known(name: str, problem: Problem) -> Json:
    row: Json = {"strategy": name}
    try:
        strategy = named(name, problem)
    except UserError as e:
        return row | _missing(str(e))
    if name == "expert":
        row["same_as"] = _same_as(strategy, problem)
    return row | _figures(strategy, problem)


def _same_as(strategy: Strategy, problem: Problem) -> str | None:
    """Which one of the other built-in strategies the experts' is, for this network."""
    for name in BUILT_IN:
        if name != "expert":
            try:
                if named(name, problem) == strategy:
                    return name
            except UserError:
                continue
    return None


def _placement(
    problem: Problem, budget: Budget, args: argparse.Namespace, interrupted: bool
) -> Json:
    """The best strategy of whole operators on devices, the space of REINFORCE (section 8.2.3)."""
    if interrupted:
        return {"strategy": PLACEMENT} | _missing("not searched for, because of the interrupt")
    with ProgressBar("placement") as bar:
        try:
            result = placement_only(problem, budget, args.seed, args.chains, progress=bar.search)
        except UserError as e:
            return {"strategy": PLACEMENT} | _missing(str(e))
    return _searched(PLACEMENT, result, problem)


def _searched(name: str, result: SearchResult, problem: Problem) -> Json:
    if result.interrupted:
        note(f"interrupted; '{name}' is the best strategy until then")
    return {
        "strategy": name,
        "proposals": result.proposals,
        "seconds": result.seconds,
        "local_optimum": result.local_optimum,
    } | _figures(result.strategy, problem)


def _figures(strategy: Strategy, problem: Problem) -> Json:
    timeline = full(problem, strategy)
    return {"exists": True, "reason": memory_excess(strategy, timeline)} | figures(timeline)


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
    if not row["exists"]:
        return (name, "impossible", *[""] * (len(COLUMNS) - 2))
    speedup = row["speedup"]
    return (
        name,
        duration(row["iteration_time_ns"]),
        "" if speedup is None else f"{speedup:.2f}x",
        volume(row["bytes_moved"]),
        duration(row["computation_time_ns"]),
        memory(row["peak_memory_bytes"]) + ("" if row["fits"] else " (does not fit)"),
        f"{row['load_balance']:.2f}",
    )
