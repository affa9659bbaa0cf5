"""``flexlegion search``: find a fast strategy for a machine (FlexFlow, section 6)."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict
from typing import Any

from flexlegion.documents import check_writable
from flexlegion.errors import UserError
from flexlegion.problem import Problem
from flexlegion.report.progress import ProgressBar
from flexlegion.report.text import count, duration, pairs
from flexlegion.report.timelines import described, details, fits, save_trace
from flexlegion.searches.mcmc import Budget, SearchOptions, SearchResult, search
from flexlegion.simulator import full
from flexlegion.strategy import Strategy
from flexlegion.tools.budget import add_budget_options, budget_of
from flexlegion.tools.command import Commands, add_command, answer, note
from flexlegion.tools.network import (
    Setting,
    add_json_option,
    add_machine_options,
    add_network_options,
)
from flexlegion.tools.strategies import OPTCNN, STRATEGIES, named

DEFAULT_STARTS = ("data", "expert", OPTCNN, "random")
REFERENCES = ("data", "expert")

# What makes a search faster or better, and can be left out to measure its worth.
SWITCHES = {
    "tied": "do not change operators of a kind together at first",
    "descent": "do not descend to a local optimum at the end",
    "cooling": "keep the temperature instead of letting it fall",
    "critical": "do not prefer operators on the critical path",
    "neighbours": "do not propose neighbours' configurations",
    "early-rejection": "simulate every proposal to its end (same result, slower)",
}


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "search",
        "search for a fast strategy and write it as a file; Ctrl-C ends the search early, and the "
        "best strategy so far is written",
        "search --model lenet --machine p100x4 --budget 5s --out s.json",
        _run,
    )
    add_network_options(parser)
    add_machine_options(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="the strategy file to write")
    add_budget_options(parser)
    parser.add_argument(
        "--start",
        metavar="NAMES",
        help=f"where to start, a list with commas of {', '.join(STRATEGIES)}, random, random:SEED "
        f"and strategy files; default: {','.join(DEFAULT_STARTS)}, as far as the batch allows",
    )
    for name, text in SWITCHES.items():
        parser.add_argument(f"--no-{name}", action="store_true", help=text)
    parser.add_argument(
        "--trace", metavar="FILE", help="write the timeline found, for https://ui.perfetto.dev"
    )
    add_json_option(parser)


def _run(args: argparse.Namespace) -> None:
    check_writable(args.out, "strategy")
    if args.trace is not None:
        check_writable(args.trace, "trace")
    budget = budget_of(args)
    setting = Setting.of(args)
    problem = setting.problem
    starts = starts_of(args.start, problem, args.seed)
    options = SearchOptions(**_switches(args))
    with ProgressBar("search") as bar:
        result = search(
            problem, starts, budget, args.seed, args.chains, options, progress=bar.search
        )
    references = reference_times(problem)
    found = found_of(setting, result, references, budget, args.seed)
    strategy = Strategy(result.strategy, args.out, setting.network.found(found))
    strategy.save(args.out)
    if result.interrupted:
        note(f"interrupted; {args.out} has the best strategy so far")
    timeline = full(problem, strategy)
    priced_by = problem.priced_by(strategy)
    if args.trace is not None:
        save_trace(args.trace, timeline, {k: str(v) for k, v in found.items()})
    facts = found | {"out": args.out, "strategy": args.out, "seconds": result.seconds}
    facts |= {"counts": counts_of(result)} | details(timeline, priced_by)
    text = f"{setting}\n\n{_story(result, references)}\n{described(timeline, priced_by)}"
    answer(args, facts, f"{text}\nwrote {args.out}")


def _switches(args: argparse.Namespace) -> dict[str, Any]:
    names = [name.replace("-", "_") for name in SWITCHES]
    return {name: not vars(args)[f"no_{name}"] for name in names}


def starts_of(text: str | None, problem: Problem, seed: int) -> dict[str, Strategy]:
    """The strategies to start from, by name; equal ones once.

    Parameters
    ----------
    text
        Names and files, with commas between; None: `DEFAULT_STARTS`, without those that cannot
        exist.
    problem
        Graph, machine and costs.
    seed
        Of ``random``.

    Raises
    ------
    UserError
        If a start that was asked for cannot be read or does not fit.
    """
    starts: dict[str, Strategy] = {}
    for name in DEFAULT_STARTS if text is None else text.split(","):
        spec = f"random:{seed}" if name.strip() == "random" else name.strip()
        try:
            strategy = named(spec, problem)
        except UserError as e:
            if text is not None:
                raise
            note(f"no start from '{name}': {e}")
            continue
        twin = next((other for other, same in starts.items() if same == strategy), None)
        if twin is None:
            starts[spec] = strategy
        elif text is not None:
            note(f"start '{spec}' is the same strategy as '{twin}'")
    return starts


def reference_times(problem: Problem) -> dict[str, int | None]:
    """Iteration times of data parallelism and of the experts' strategy; None: it cannot exist.

    A strategy that does not fit into memory has no time to compare with, either.
    """
    times: dict[str, int | None] = {}
    for name in REFERENCES:
        try:
            timeline = full(problem, named(name, problem))
        except UserError:
            times[name] = None
        else:
            times[name] = timeline.iteration_time_ns if fits(timeline) else None
    return times


def found_of(
    setting: Setting,
    result: SearchResult,
    references: dict[str, int | None],
    budget: Budget,
    seed: int,
) -> dict[str, Any]:
    """What a strategy file says about how it was found."""
    time = result.iteration_time_ns
    data, expert = (references[name] for name in REFERENCES)
    return setting.about() | {
        "iteration_time_ns": time,
        "data_parallel_time_ns": data,
        "expert_time_ns": expert,
        "speedup": data / time if data else None,
        "speedup_over_expert": expert / time if expert else None,
        "start": result.start,
        "start_times_ns": result.start_times_ns,
        "local_optimum": result.local_optimum,
        "interrupted": result.interrupted,
        "proposals": result.proposals,
        "seed": seed,
        "chains": max(len(states) for states in result.states.values()),
        "budget": {"seconds": budget.seconds, "proposals": budget.proposals},
    }


def counts_of(result: SearchResult) -> dict[str, int]:
    """What became of the proposals, over all chains."""
    total: Counter[str] = Counter()
    for states in result.states.values():
        for state in states:
            total.update(asdict(state))
    del total["best_time"], total["current_time"]
    return dict(total)


def _story(result: SearchResult, references: dict[str, int | None]) -> str:
    """From where, how far, and how it ended."""
    rows = [
        (f"start {name}", "does not fit into memory" if time is None else duration(time))
        for name, time in result.start_times_ns.items()
    ]
    for name, time in references.items():
        if time is None and result.start_times_ns.get(name) is None:
            rows.append((name, "cannot run: batch or memory too small"))
        elif name not in result.start_times_ns and time is not None:
            rows.append((name, duration(time)))
    rows.append(("found", f"{duration(result.iteration_time_ns)}, from start {result.start}"))
    for name, time in references.items():
        if time is not None:
            what = "data parallelism" if name == "data" else "the experts' strategy"
            rows.append(("speed-up", f"{time / result.iteration_time_ns:.2f}x over {what}"))
    counts = counts_of(result)
    rows.append(("search", f"{count(counts['proposals'], 'proposal')} in {result.seconds:.1f} s"))
    if result.local_optimum:
        end = "at a local optimum: no change of a single operator makes it faster"
    elif result.interrupted:
        end = "by interrupt, before a local optimum"
    else:
        end = "by its budget, before a local optimum: a longer search may find more"
    rows.append(("ended", end))
    return pairs(rows)
