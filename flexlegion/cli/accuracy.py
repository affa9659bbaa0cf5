"""``flexlegion accuracy``: simulated iterations beside real ones (FlexFlow, section 8.3.1)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

import numpy as np

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import note
from flexlegion.cli.command import (
    Commands,
    add_command,
    add_report_option,
    answer,
    logs_on_stderr,
)
from flexlegion.cli.launch import add_launch_options, go_under_legate
from flexlegion.cli.network import add_json_option, add_network_options, network_of
from flexlegion.cli.training import check_model
from flexlegion.console.progress import ProgressBar
from flexlegion.console.text import count, wrapped
from flexlegion.cost.measured import Calibration
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.graph.operator_type import DimKind
from flexlegion.machine.running import RunningMachine, running_machine
from flexlegion.machine.topology import Topology
from flexlegion.networks.network import Network
from flexlegion.objective.precision import check_used
from flexlegion.profiling.accuracy import Comparison, Parts, described, summary
from flexlegion.profiling.intervals import Estimate, estimate
from flexlegion.profiling.local import local_topology
from flexlegion.profiling.storage import check_stored
from flexlegion.profiling.tasks import task_requests
from flexlegion.report.html.measurements import accuracy_page
from flexlegion.report.html.page import save_page
from flexlegion.report.measured import MeasuredTimeline
from flexlegion.report.timelines import memory_excess
from flexlegion.searches.budget import seconds_of
from flexlegion.searches.mcmc import search
from flexlegion.searches.options import Budget, SearchOptions
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import Timeline, full
from flexlegion.strategy.strategy import ResolvedStrategy
from flexlegion.tuner.calibration import calibration_by
from flexlegion.tuner.disturbances import Watch
from flexlegion.tuner.passes import Passes
from flexlegion.tuner.rounds import Estimation, Limits, Rest
from flexlegion.tuner.trials import (
    KNOWN,
    Programs,
    Trial,
    problem_of,
    profile_runtime,
    resolvable,
    run_rounds,
)

LIMITS = Limits()
# A short search without a deadline, so that all ranks find the same; of each chain.
SEARCH = Budget(seconds=None, proposals=500)
SEARCH_OPTIONS = SearchOptions(descent=False)
CHAINS = 1
COMPARISON = ("strategies", "rounds", "trial_budget", "seed", "profile_db")


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
    add_network_options(parser, trains=True)
    add_launch_options(parser)
    add_comparison_options(parser)
    add_report_option(parser)
    add_json_option(parser)


def add_comparison_options(parser: argparse.ArgumentParser) -> None:
    """Those of `COMPARISON`: ``--strategies``, ``--rounds`` and so on."""
    parser.add_argument(
        "--strategies",
        type=int,
        default=11,
        help="how many; the first is what the others' times are compared with; default: 11",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=LIMITS.rounds,
        help=f"of training each, at least; default: {LIMITS.rounds}",
    )
    parser.add_argument(
        "--trial-budget",
        metavar="TIME",
        default=f"{LIMITS.seconds:g}s",
        help="when to begin no further round beyond --rounds; default: %(default)s",
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument(
        "--profile-db",
        metavar="FILE",
        help="where rates of links and the runtime's costs are kept; default: the user's own",
    )


def check_comparison_options(args: argparse.Namespace) -> None:
    """Raise `UserError` if one of them has no such value."""
    for option, least in (("strategies", 2), ("rounds", 1), ("seed", 0)):
        if getattr(args, option) < least:
            raise UserError(f"--{option} has to be at least {least}")
    seconds_of(args.trial_budget, "--trial-budget")


def _run(args: argparse.Namespace) -> None:
    check_comparison_options(args)
    check_model(args)
    go_under_legate(args)
    network = network_of(args)
    with logs_on_stderr():
        machine = running_machine()
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
    check_used(network.training.precision, machine.devices.names, "this machine")
    check_stored(network.training.storage, machine.devices.names)
    with ProfileDB(args.profile_db) as db:
        topology = local_topology(db)
        profile_runtime(topology, db)
        strategies = _strategies(problem_of(network, topology, db), args.strategies, args.seed)
        requests = [
            request
            for strategy in strategies.values()
            for request in task_requests(strategy, topology)
        ]
        with closing(Passes(requests, network, topology)) as passes:
            trials, measured, rest = _tried(strategies, network, topology, db, passes, args)
            with passes.means(db) as prices:
                calibration = _calibration(trials[0], measured[0], network, topology, prices)
                problem = problem_of(network, topology, prices)
                calibrated = problem_of(network, topology, prices, calibration)
                comparisons = [
                    _comparison(trial, its, problem, calibrated)
                    for trial, its in zip(trials, measured, strict=True)
                ]
    trained = {
        "optimizer": network.training.optimizer.type,
        "clip_norm": network.training.optimizer.clip_norm,
        "ema": network.training.optimizer.ema,
        "precision": network.training.precision,
        "storage": network.training.storage,
        "micro_batches": network.training.micro_batches,
    }
    facts = network.about() | {
        "options": {name: getattr(args, name) for name in COMPARISON} | trained,
        "machine": str(machine.devices),
        "tasks_measured": passes.measured,
        "passes": passes.count,
        "seed": args.seed,
        "reference": comparisons[0].facts(),
        "calibration": asdict(calibration),
        "rest": rest.facts(),
    }
    heading = (
        f"{network} on {machine.devices}; {count(passes.measured, 'task')} measured in "
        f"{passes.count} passes. Times are compared with those of '{trials[0].name}' in the same "
        f"rounds, whose own error is {comparisons[0].error:+.1%}; it calibrates the second "
        f"figures, where tasks take {calibration.factor:.2f} times and the runtime "
        f"{calibration.runtime:.2f} times what was measured. "
        f"{rest.verdict[0].upper()}{rest.verdict[1:]}."
    )
    return facts | summary(comparisons[1:]), f"{wrapped(heading)}\n\n{described(comparisons[1:])}"


def _strategies(problem: Problem, number: int, seed: int) -> dict[str, ResolvedStrategy]:
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
    chosen: dict[str, ResolvedStrategy] = {}
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
    strategies: dict[str, ResolvedStrategy],
    network: Network,
    topology: Topology,
    db: ProfileDB,
    passes: Passes,
    args: argparse.Namespace,
) -> tuple[list[Trial], list[Estimate], Rest]:
    """All strategies in training, with their iterations in ns; and whether the machine was at rest.

    Those that do not fit into memory together train one group after the other, each with the
    reference.
    """
    shown = running_machine().rank == 0
    seconds = seconds_of(args.trial_budget, "--trial-budget")
    limits = Limits(args.rounds, max(args.rounds, LIMITS.max_rounds), seconds=seconds)
    problem = problem_of(network, topology, db)
    trials = [
        Trial(name, strategy, full(problem, strategy).iteration_time_ns)
        for name, strategy in strategies.items()
    ]
    reference, *others = trials
    groups = _groups(reference, others, Programs(network, problem))
    passes.measure(shown)
    ratios: list[Estimate] = []
    with Watch() as watch, ProgressBar("training", shown) as bar:
        for number, group in enumerate(groups):
            rounds = Estimation(reference.name, [trial.name for trial in group], limits)
            run_rounds(
                [reference, *group],
                rounds,
                network,
                problem,
                seed=args.seed + number,
                progress=lambda done: bar.steps(done, limits.max_rounds),
                between=watch.paused(
                    lambda _: passes.measure(shown) if passes.fits(seconds) else None
                ),
                record=True,
            )
            ratios += [rounds.estimate(trial.name) for trial in group]
    level = float(np.median(reference.seconds))
    first = estimate(reference.seconds, limits.confidence)
    measured = [first.times(1e9), *(ratio.times(1e9 * level) for ratio in ratios)]
    return trials, measured, watch.rest(reference.seconds)


def _groups(reference: Trial, others: Sequence[Trial], programs: Programs) -> list[list[Trial]]:
    """Strategies in their order, in groups that fit into the memories with the reference."""
    groups: list[list[Trial]] = [[]]
    for trial in others:
        if groups[-1] and not programs.fit([reference, *groups[-1], trial]):
            groups.append([])
        groups[-1].append(trial)
    return groups


def _calibration(
    trial: Trial, measured: Estimate, network: Network, topology: Topology, db: ProfileDB
) -> Calibration:
    assert trial.timeline is not None
    return calibration_by(
        trial.strategy, round(measured.value), trial.timeline, network, topology, db
    )


def _comparison(
    trial: Trial, measured: Estimate, problem: Problem, calibrated: Problem
) -> Comparison:
    """A trial beside its simulation."""
    assert trial.timeline is not None
    timeline = full(problem, trial.strategy)
    busy = trial.timeline.busy_ns()
    device = max(busy, key=lambda name: busy[name])
    links = [timeline.load_ns[channel] for channel in problem.topology.channels]
    return Comparison(
        trial.name,
        timeline.iteration_time_ns,
        full(calibrated, trial.strategy).iteration_time_ns,
        measured,
        len(trial.seconds),
        device,
        _simulated_parts(timeline, device),
        _measured_parts(trial.timeline, device, round(measured.value)),
        max(links, default=0),
        problem.priced_by(trial.strategy),
        _split_reductions(trial.strategy, problem),
    )


def _simulated_parts(timeline: Timeline, device: str) -> Parts:
    rows = timeline.tasks
    mine = rows[(rows["device"] == timeline.places.index(device)) & (rows["hop"] < 0)]
    tasks = int((mine["exe_time"] + mine["contention_time"]).sum())
    launches = int(mine["runtime_time"].sum())
    return Parts(tasks, launches, timeline.iteration_time_ns - tasks - launches)


def _measured_parts(timeline: MeasuredTimeline, device: str, iteration_ns: int) -> Parts:
    pace = timeline.pace(iteration_ns)
    tasks = round(pace * timeline.computing_ns()[device])
    launches = round(pace * timeline.launching_ns()[device])
    return Parts(tasks, launches, iteration_ns - tasks - launches)


def _split_reductions(strategy: ResolvedStrategy, problem: Problem) -> int:
    """How many operators are split in a dimension that they sum over."""
    return sum(
        any(
            degree > 1 and dim.kind is DimKind.REDUCTION
            for dim, degree in zip(operator.dims, strategy[operator.name].degrees, strict=True)
        )
        for operator in problem.facts.trained
    )
