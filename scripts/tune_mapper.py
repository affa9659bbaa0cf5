"""Find the strategy for the machine that this runs on, and write it for train.py.

Run it with the legate command, on the processors that will train:

    legate --cpus 2 --gpus 0 scripts/tune_mapper.py --model lenet --out s.json
    legate --cpus 2 --gpus 0 scripts/train.py --model lenet --strategy s.json

It measures the network's operators on this machine (what the profile data base lacks), and by data
parallelism what training adds to these times. With that it searches, then trains for a moment with
the best few strategies found and with data parallelism, and writes the one that is really fastest:
data parallelism, unless another beats it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from flexlegion.commands import run_command
from flexlegion.cost.measure import all_requests
from flexlegion.cost.measured import AS_MEASURED, Calibration
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.data.tasks import SAMPLE, Request
from flexlegion.documents import check_writable
from flexlegion.errors import UserError
from flexlegion.local import local_topology
from flexlegion.network import Network
from flexlegion.precision import check_precision, check_used
from flexlegion.problem import Problem
from flexlegion.references import load_model, target_of
from flexlegion.report.progress import ProgressBar
from flexlegion.report.text import count, duration
from flexlegion.report.timelines import memory_excess
from flexlegion.runtime.machine import running_machine
from flexlegion.searches.mcmc import Budget, SearchResult, search
from flexlegion.simulator import full
from flexlegion.strategies import resolve
from flexlegion.strategy import Strategy
from flexlegion.tools.calibration import calibration_by
from flexlegion.tools.sizes import add_size_option, given_sizes
from flexlegion.tools.training import (
    BATCH_SIZE,
    add_precision_option,
    batch_size_of,
    data_and_sizes,
)
from flexlegion.tools.trials import Trial, problem_of, profile, resolvable, run_trials
from flexlegion.topology import Topology
from flexlegion.zoo import ZOO

# What a finalist has to win against data parallelism: most of the rounds, and by more than this.
CLEAR_GAIN = 0.01
# Ranks have to find the same, so where there are several, time is not what ends the search.
PROPOSALS_OF_RANKS = 20_000


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tune_mapper.py",
        description="Find the fastest strategy for the machine that this runs on.",
        epilog="example: legate --cpus 2 --gpus 0 scripts/tune_mapper.py --model lenet "
        "--out s.json",
    )
    parser.add_argument("--model", default="lenet", help=f"one of {', '.join(ZOO)}")
    add_size_option(parser)
    parser.add_argument("--out", required=True, help="the strategy file to write")
    parser.add_argument(
        "--data",
        default=SAMPLE,
        help=f"what train.py will be given, for the network's sizes; default: {SAMPLE}",
    )
    parser.add_argument("--labels", help="for .npy data: the labels' file")
    parser.add_argument(
        "--batch-size",
        type=int,
        help=f"over all devices; default: {BATCH_SIZE}, with synthetic data the network's own",
    )
    parser.add_argument("--optimizer", default="adam", help="sgd, adam (default) or adamw")
    add_precision_option(parser)
    parser.add_argument(
        "--budget", type=float, default=10.0, help="seconds that the search may take; default: 10"
    )
    parser.add_argument("--rounds", type=int, default=7, help="of measuring finalists; default: 7")
    parser.add_argument("--finalists", type=int, default=3, help="found strategies to measure")
    parser.add_argument("--profile-db", metavar="FILE", help="default: the user's own")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object: times in ns, sizes in bytes"
    )
    return parser


def _network(args: argparse.Namespace) -> Network:
    """The network that train.py would train."""
    if args.model not in ZOO:
        raise UserError(f"unknown model '{args.model}'; choose one of {', '.join(ZOO)}")
    entry = ZOO[args.model]
    request = Request(args.data, args.labels, samples=1, test_samples=1, seed=args.seed)
    _, sizes = data_and_sizes(entry, given_sizes(args.size, target_of(args.model)), request)
    batch_size = batch_size_of(args, entry)
    model = load_model(args.model, batch_size, sizes)
    network = Network.of(model, optimizer=args.optimizer, precision=args.precision)
    network.graph.require_kernels()
    return network


def _check(args: argparse.Namespace) -> None:
    for option, least in (("rounds", 1), ("finalists", 1), ("seed", 0)):
        if getattr(args, option) < least:
            raise UserError(f"--{option} has to be at least {least}")
    check_precision(args.precision)
    check_writable(args.out, "strategy")


def _starts(problem: Problem) -> dict[str, Strategy]:
    return resolvable(("data", "single", "model", "expert"), problem)


def _calibrated(
    network: Network, topology: Topology, db: ProfileDB, args: argparse.Namespace, shown: bool
) -> Calibration:
    """What training takes beyond its tasks' times, by the first known strategy that fits."""
    problem = problem_of(network, topology, db)
    for strategy in _starts(problem).values():
        timeline = full(problem, strategy)
        if memory_excess(strategy, timeline) is None:
            trial = Trial("calibrating", strategy, timeline.iteration_time_ns)
            options = {"seed": args.seed, "shown": shown}
            run_trials([trial], network, problem, args.rounds, **options, busy=True)
            return calibration_by(trial, network, topology, db)
    return AS_MEASURED


def _search(problem: Problem, args: argparse.Namespace, ranks: int, shown: bool) -> SearchResult:
    starts = _starts(problem)
    budget = (
        Budget(seconds=args.budget)
        if ranks == 1
        else Budget(seconds=None, proposals=PROPOSALS_OF_RANKS)
    )
    with ProgressBar("search", shown) as bar:
        return search(problem, starts, budget, args.seed, progress=bar.search)


def _finalists(problem: Problem, result: SearchResult, number: int) -> list[Trial]:
    """Data parallelism, where the batch allows it, then the best few that were found.

    Of those that are simulated to take equally long, as mirror images do, one.
    """
    finalists = []
    if "data" in result.start_times_ns:
        data = resolve("data", problem.graph, problem.devices)
        finalists.append(Trial("data parallelism", data, result.start_times_ns["data"] or 0))
    for start, (strategy, time_ns) in result.found.items():
        known = any(f.simulated_ns == time_ns for f in finalists)
        if not known and len(finalists) <= number:
            finalists.append(Trial(f"found from '{start}'", strategy, time_ns))
    return finalists


def choose(finalists: Sequence[Trial]) -> Trial:
    """The fastest, if it clearly beats data parallelism (the first), else data parallelism."""
    data = finalists[0]
    best = min(finalists, key=lambda finalist: finalist.median)
    wins = sum(a < b for a, b in zip(best.seconds, data.seconds, strict=True))
    clear = best.median < data.median * (1 - CLEAR_GAIN) and 2 * wins > len(data.seconds)
    return best if clear else data


def _report(
    args: argparse.Namespace,
    network: Network,
    problem: Problem,
    result: SearchResult,
    finalists: list[Trial],
    chosen: Trial,
    measured: int,
    calibration: Calibration,
) -> None:
    best_ns = round(chosen.median * 1e9)
    found = network.about() | {
        "machine": str(problem.devices),
        "seed": args.seed,
        "iteration_time_ns": chosen.simulated_ns,
        "measured_iteration_time_ns": best_ns,
        "measured_first_finalist_time_ns": round(finalists[0].median * 1e9),
    }
    Strategy(dict(chosen.strategy), args.out, network.found(found)).save(args.out)
    if args.json:
        rows = [
            {
                "name": f.name,
                "iteration_time_ns": f.simulated_ns,
                "measured_iteration_time_ns": round(f.median * 1e9),
            }
            for f in finalists
        ]
        summary = found | {
            "out": args.out,
            "chosen": chosen.name,
            "finalists": rows,
            "tasks_measured": measured,
            "calibration": asdict(calibration),
            "proposals": result.proposals,
            "seconds": result.seconds,
            "priced_by": dict(problem.priced_by(chosen.strategy)),
        }
        print(json.dumps(summary))
        return
    table = Table(title=f"{network} on {problem.devices}")
    for column in ("strategy", "simulated", "measured", "speed-up"):
        table.add_column(column, justify="left" if column == "strategy" else "right")
    for f in finalists:
        table.add_row(
            f.name + (" *" if f is chosen else ""),
            f"{f.simulated_ns / 1e6:.3f} ms",
            f"{f.median * 1e3:.3f} ms",
            f"{finalists[0].median / f.median:.2f}x",
        )
    console = Console()
    console.print(table)
    launch = duration(calibration.launch_ns or 0)
    print(
        f"{count(measured, 'task')} measured now; in training, they take {calibration.factor:.2f} "
        f"times as long, and a launch {launch}\n"
        f"{count(result.proposals, 'proposal')} in {result.seconds:.1f} s"
    )
    print(f"wrote {args.out}: {chosen.name}")


def _run(argv: Sequence[str] | None) -> None:
    args = _parser().parse_args(argv)
    _check(args)
    network = _network(args)
    machine = running_machine()
    check_used(args.precision, machine.devices.names, "this run")
    shown = machine.rank == 0 and not args.json
    with ProfileDB(args.profile_db) as db:
        topology = local_topology(db)
        requests = all_requests(network.graph, topology)
        measured = profile(requests, network, topology, db, shown)
        calibration = _calibrated(network, topology, db, args, shown)
        problem = problem_of(network, topology, db, calibration)
        result = _search(problem, args, machine.ranks, shown)
        finalists = _finalists(problem, result, args.finalists)
        run_trials(finalists, network, problem, args.rounds, seed=args.seed, shown=shown)
        chosen = choose(finalists)
        if machine.rank == 0:
            _report(args, network, problem, result, finalists, chosen, measured, calibration)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(_run, argv)


if __name__ == "__main__":
    status = main()
    if status != 0:
        # Legate would go on to its own shutdown, which on several ranks waits for the others.
        sys.stdout.flush()
        os._exit(status)
