"""``flexlegion accuracy``: simulated iterations beside real ones (FlexFlow, section 8.3.1)."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from typing import Any

from flexlegion.cost.measure import task_requests
from flexlegion.cost.measured import AS_MEASURED, Calibration
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.errors import UserError
from flexlegion.files import check_writable
from flexlegion.machine.local import local_topology
from flexlegion.machine.running import RunningMachine, running_machine
from flexlegion.network import Network
from flexlegion.ops.base import DimKind
from flexlegion.precision import check_used
from flexlegion.problem import Problem
from flexlegion.report.accuracy import Comparison, described, noise_ns, summary
from flexlegion.report.html.measurements import accuracy_page
from flexlegion.report.html.page import save_page
from flexlegion.report.text import count, duration
from flexlegion.report.timelines import memory_excess
from flexlegion.searches.mcmc import Budget, SearchOptions, search
from flexlegion.simulator import full
from flexlegion.strategy import Strategy
from flexlegion.tools.command import (
    Commands,
    add_command,
    add_report_option,
    answer,
    logs_on_stderr,
    note,
)
from flexlegion.tools.launch import add_launch_options, go_under_legate, interruptible
from flexlegion.tools.network import add_json_option, add_network_options, network_of
from flexlegion.tools.training import check_model
from flexlegion.tuner.calibration import calibration_by
from flexlegion.tuner.trials import KNOWN, Trial, problem_of, profile, resolvable, run_trials

# A short search without a deadline, so that all ranks find the same; of each chain.
SEARCH = Budget(seconds=None, proposals=500)
SEARCH_OPTIONS = SearchOptions(descent=False)
CHAINS = 1


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "accuracy",
        "train with several strategies on this machine, and compare the times of iterations with "
        "simulated ones",
        "accuracy --model lenet --cpus 2",
        _run,
    )
    add_network_options(parser)
    add_launch_options(parser)
    parser.add_argument(
        "--strategies", type=int, default=11, help="how many; the first calibrates; default: 11"
    )
    parser.add_argument("--rounds", type=int, default=7, help="of measuring each; default: 7")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--profile-db", metavar="FILE", help="default: the user's own")
    add_report_option(parser)
    add_json_option(parser)


def _run(args: argparse.Namespace) -> None:
    for option, least in (("strategies", 2), ("rounds", 1), ("seed", 0)):
        if getattr(args, option) < least:
            raise UserError(f"--{option} has to be at least {least}")
    if args.report is not None:
        check_writable(args.report, "report")
    check_model(args)
    go_under_legate(args)
    network = network_of(args)
    with logs_on_stderr():
        machine = running_machine()
        interruptible()
        facts, text = _measured(network, machine, args)
    if machine.rank == 0:
        if args.report is not None:
            title = f"{network} on {machine.devices}"
            save_page(args.report, accuracy_page(title, facts))
        answer(args, facts, text)


def _measured(
    network: Network, machine: RunningMachine, args: argparse.Namespace
) -> tuple[dict[str, Any], str]:
    """The result, for programs and for people."""
    check_used(network.precision, machine.devices.names, "this machine")
    shown = machine.rank == 0
    with ProfileDB(args.profile_db) as db:
        topology = local_topology(db)
        strategies = _strategies(problem_of(network, topology, db), args.strategies, args.seed)
        requests = [
            request
            for strategy in strategies.values()
            for request in task_requests(network.graph, strategy, topology)
        ]
        measured = profile(requests, network, topology, db, shown)
        problem = problem_of(network, topology, db)
        trials, again = _tried(strategies, network, problem, args, shown)

        def compared(calibration: Calibration) -> list[Comparison]:
            problem = problem_of(network, topology, db, calibration)
            return [_comparison(trial, problem) for trial in trials]

        first = trials[0]
        calibration = calibration_by(first, network, topology, db)
        plain = summary(compared(AS_MEASURED)[1:])
        comparisons = compared(calibration)
    facts = network.about() | {
        "machine": str(machine.devices),
        "tasks_measured": measured,
        "rounds": args.rounds,
        "seed": args.seed,
    }
    before, after = (round(1e9 * trial.median) for trial in (first, again))
    drift = after / before
    facts["calibration"] = asdict(calibration) | {
        "strategy": first.name,
        "measured_iteration_time_ns": before,
        "final_iteration_time_ns": after,
        "drift": drift,
    }
    facts["uncalibrated"] = {name: plain[name] for name in ("mean_error", "worst_error")}
    heading = (
        f"{network} on {machine.devices}; {count(measured, 'task')} measured now\n"
        f"calibrated by '{first.name}', which does not count below: tasks take "
        f"{calibration.factor:.2f} times what they take one by one, and "
        f"{duration(calibration.launch_ns or 0)} pass between two that are not fused\n"
        f"once more at the end, its iteration took {drift:.2f} times as long: so much did the "
        "machine's speed change meanwhile\n"
        f"without calibration, errors would be {plain['mean_error']:.1%} in the mean, "
        f"{plain['worst_error']:.1%} at worst"
    )
    return facts | summary(comparisons[1:]), f"{heading}\n\n{described(comparisons[1:])}"


def _strategies(problem: Problem, number: int, seed: int) -> dict[str, Strategy]:
    """At most so many different strategies that fit into memory, by name.

    The known ones come first; then, in turn, random ones and such as a short search finds.
    """
    known = resolvable(KNOWN, problem)
    random = resolvable([f"random:{seed + i}" for i in range(number)], problem)
    starts = known | dict(list(random.items())[:1])
    found = search(problem, starts, SEARCH, seed, CHAINS, SEARCH_OPTIONS).found
    searched = [(f"found from {name}", strategy) for name, (strategy, _) in found.items()]
    hybrids = []
    for i, pair in enumerate(random.items()):
        hybrids += [pair, *searched[i : i + 1]]
    chosen: dict[str, Strategy] = {}
    for name, strategy in [*known.items(), *hybrids]:
        if len(chosen) == number:
            break
        if any(dict(other) == dict(strategy) for other in chosen.values()):
            continue
        excess = memory_excess(strategy, full(problem, strategy))
        if excess is None:
            chosen[name] = strategy
        else:
            note(f"without '{name}': {excess}")
    if not chosen:
        raise UserError(
            "none of the strategies fits into the machine's memory; take a smaller batch"
        )
    return chosen


def _tried(
    strategies: dict[str, Strategy],
    network: Network,
    problem: Problem,
    args: argparse.Namespace,
    shown: bool,
) -> tuple[list[Trial], Trial]:
    """All strategies in training; the first of them once more, which shows how far times drift."""
    trials = [
        Trial(name, strategy, full(problem, strategy).iteration_time_ns)
        for name, strategy in strategies.items()
    ]
    again = replace(trials[0], seconds=[])
    options = {"seed": args.seed, "shown": shown}
    run_trials(trials, network, problem, args.rounds, **options, busy=True)
    run_trials([again], network, problem, args.rounds, **options)
    return trials, again


def _comparison(trial: Trial, problem: Problem) -> Comparison:
    """A trial beside its simulation."""
    timeline = full(problem, trial.strategy)
    busy = trial.busy_ns
    device = max(busy, key=lambda name: busy[name])
    links = [timeline.load_ns[channel] for channel in problem.topology.channels]
    return Comparison(
        trial.name,
        timeline.iteration_time_ns,
        round(1e9 * trial.median),
        noise_ns(trial.seconds),
        device,
        timeline.load_ns[device],
        busy[device],
        max(links, default=0),
        problem.priced_by(trial.strategy),
        _split_reductions(trial.strategy, problem),
    )


def _split_reductions(strategy: Strategy, problem: Problem) -> int:
    """How many operators are split in a dimension that they sum over."""
    return sum(
        any(
            degree > 1 and dim.kind is DimKind.REDUCTION
            for dim, degree in zip(operator.dims, strategy[operator.name].degrees, strict=True)
        )
        for operator in problem.facts.trained
    )
