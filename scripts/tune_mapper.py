"""Find the strategy for the machine that this runs on, and write it for train.py.

Run it with the legate command, on the processors that will train:

    legate --cpus 2 --gpus 0 scripts/tune_mapper.py --model lenet --out s.json
    legate --cpus 2 --gpus 0 scripts/train.py --model lenet --strategy s.json

It measures the network's operators on this machine (what the profile data base lacks), searches
with these times, then trains for a moment with the best few strategies found and with data
parallelism, and writes the one that is really fastest: data parallelism, unless another beats it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from flexlegion.commands import run_command
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.measure import TaskRequest, measure, measure_linears
from flexlegion.cost.measured import MeasuredCosts
from flexlegion.cost.model import STAGES
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.cost.timing import share
from flexlegion.data import load
from flexlegion.documents import check_writable
from flexlegion.errors import UserError
from flexlegion.local import local_topology
from flexlegion.losses import add_loss
from flexlegion.model import Model
from flexlegion.optimizers import Optimizer, optimizer_of
from flexlegion.problem import Problem
from flexlegion.runtime.machine import running_machine
from flexlegion.search.mcmc import Budget, SearchResult, search
from flexlegion.soap import splits
from flexlegion.strategies import resolve
from flexlegion.strategy import Strategy
from flexlegion.topology import Device
from flexlegion.zoo import ZOO, build

# What a finalist has to win against data parallelism: most of the rounds, and by more than this.
CLEAR_GAIN = 0.01
# Ranks have to find the same, so where there are several, time is not what ends the search.
PROPOSALS_OF_RANKS = 20_000


@dataclass
class Finalist:
    """A strategy that is measured: simulated ns, and the measured seconds of an iteration."""

    name: str
    strategy: Strategy
    simulated_ns: int
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds an iteration."""
        return statistics.median(self.seconds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tune_mapper.py",
        description="Find the fastest strategy for the machine that this runs on.",
        epilog="example: legate --cpus 2 --gpus 0 scripts/tune_mapper.py --model lenet "
        "--out s.json",
    )
    parser.add_argument("--model", default="lenet", help=f"one of {', '.join(ZOO)}")
    parser.add_argument("--out", required=True, help="the strategy file to write")
    parser.add_argument(
        "--data",
        default="digits",
        help="what train.py will be given, for the shape of a sample; default: digits",
    )
    parser.add_argument("--labels", help="for .npy data: the labels' file")
    parser.add_argument("--batch-size", type=int, default=32, help="over all devices; default: 32")
    parser.add_argument("--optimizer", default="adam", help="sgd, adam (default) or adamw")
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


def _check(args: argparse.Namespace) -> None:
    for option, least in (("rounds", 1), ("finalists", 1), ("seed", 0)):
        if getattr(args, option) < least:
            raise UserError(f"--{option} has to be at least {least}")
    check_writable(args.out, "strategy")


def _devices_by_model(devices: Sequence[Device]) -> list[Device]:
    """One device of each model: the others take as long."""
    return list({device.model: device for device in reversed(devices)}.values())


def _profile(
    problem_graph: Model, optimizer: Optimizer, db: ProfileDB, loss: str, shown: bool
) -> tuple[Problem, int]:
    """Measure what the search needs, and state the problem with it."""
    output = problem_graph.graph.operators[-1].output
    graph = add_loss(problem_graph.graph, output, loss)
    graph.require_kernels()
    topology = local_topology(db)
    kinds = _devices_by_model(topology.devices)
    requests = [
        TaskRequest(operator, degrees, part, stage, device)
        for operator in graph.operators
        for degrees in splits(operator, len(topology.devices))
        for part in range(int(np.prod(degrees)))
        for stage in STAGES
        for device in kinds
    ]
    with Progress(console=Console(stderr=True), disable=not shown, transient=True) as bar:
        task = bar.add_task("measuring operators", total=None)
        count = measure(
            requests, db, lambda done, all_: bar.update(task, completed=done, total=all_)
        )
    for device in kinds:
        count += measure_linears(device, db, optimizer)
    costs = MeasuredCosts(db, AnalyticCosts(), optimizer=optimizer.type)
    return Problem(graph, topology, costs, output, optimizer.states), count


def _search(problem: Problem, args: argparse.Namespace, ranks: int, shown: bool) -> SearchResult:
    starts = {}
    for name in ("data", "single", "model", "expert"):
        try:
            starts[name] = resolve(name, problem.graph, problem.devices)
        except UserError:
            continue  # a batch smaller than the number of devices, say
    budget = (
        Budget(seconds=args.budget)
        if ranks == 1
        else Budget(seconds=None, proposals=PROPOSALS_OF_RANKS)
    )
    with Progress(console=Console(stderr=True), disable=not shown, transient=True) as bar:
        task = bar.add_task("searching", total=1.0)
        return search(
            problem,
            starts,
            budget,
            args.seed,
            progress=lambda used, _: bar.update(task, completed=used),
        )


def _finalists(problem: Problem, result: SearchResult, count: int) -> list[Finalist]:
    """Data parallelism, where the batch allows it, then the best few that were found."""
    finalists = []
    if "data" in result.start_times_ns:
        data = resolve("data", problem.graph, problem.devices)
        finalists.append(Finalist("data parallelism", data, result.start_times_ns["data"] or 0))
    for start, (strategy, time_ns) in result.found.items():
        known = any(dict(f.strategy) == dict(strategy) for f in finalists)
        if not known and len(finalists) <= count:
            finalists.append(Finalist(f"found from '{start}'", strategy, time_ns))
    return finalists


def _measure(
    args: argparse.Namespace, shape: tuple[int, ...], classes: int, finalists: list[Finalist]
) -> None:
    """Train with each for a moment, in rounds, so that a disturbance does not hit one alone."""
    rng = np.random.default_rng(args.seed)
    x = rng.random((args.batch_size, *shape), dtype=np.float32)
    y = rng.integers(0, classes, args.batch_size).astype(np.int32)
    models = []
    for finalist in finalists:
        model = build(args.model, args.batch_size, shape, classes, args.seed)
        model.compile(args.optimizer, ZOO[args.model].loss, [], finalist.strategy)
        model.fit(x, y, epochs=3, progress=False)
        models.append(model)
    begin = time.perf_counter()
    models[0].fit(x, y, epochs=3, progress=False)
    once = max((time.perf_counter() - begin) / 3, 1e-4)
    # The same on every rank: training is a collective matter.
    once = max(np.frombuffer(b"".join(share(np.float64(once).tobytes())), np.float64))
    repeats = int(np.clip(0.3 / once, 3, 300))
    xs, ys = np.concatenate([x] * repeats), np.concatenate([y] * repeats)
    for round_ in range(args.rounds):
        order = range(len(models)) if round_ % 2 == 0 else reversed(range(len(models)))
        for i in order:
            history = models[i].fit(xs, ys, epochs=1, progress=False)
            seconds = history.epochs[0]["seconds"] / repeats
            slowest = np.frombuffer(b"".join(share(np.float64(seconds).tobytes())), np.float64)
            finalists[i].seconds.append(float(max(slowest)))
    for model in models:
        model.close()


def choose(finalists: Sequence[Finalist]) -> Finalist:
    """The fastest, if it clearly beats data parallelism (the first), else data parallelism."""
    data = finalists[0]
    best = min(finalists, key=lambda finalist: finalist.median)
    wins = sum(a < b for a, b in zip(best.seconds, data.seconds, strict=True))
    clear = best.median < data.median * (1 - CLEAR_GAIN) and 2 * wins > len(data.seconds)
    return best if clear else data


def _report(
    args: argparse.Namespace,
    problem: Problem,
    result: SearchResult,
    finalists: list[Finalist],
    chosen: Finalist,
    measured: int,
) -> None:
    best_ns = round(chosen.median * 1e9)
    found = {
        "model": args.model,
        "batch_size": args.batch_size,
        "machine": str(problem.devices),
        "seed": args.seed,
        "iteration_time_ns": chosen.simulated_ns,
        "measured_iteration_time_ns": best_ns,
        "measured_first_finalist_time_ns": round(finalists[0].median * 1e9),
    }
    Strategy(dict(chosen.strategy), args.out, found).save(args.out)
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
            "proposals": result.proposals,
            "seconds": result.seconds,
            "priced_by": dict(problem.priced_by(chosen.strategy)),
        }
        print(json.dumps(summary))
        return
    table = Table(title=f"{args.model}, batch of {args.batch_size}, on {problem.devices}")
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
    print(
        f"{measured} tasks measured now; {result.proposals:,} proposals in {result.seconds:.1f} s"
    )
    print(f"wrote {args.out}: {chosen.name}")


def _run(argv: Sequence[str] | None) -> None:
    args = _parser().parse_args(argv)
    _check(args)
    data = load(args.data, args.labels).train
    shape, classes = data.inputs[0].shape[1:], data.n_classes
    model = build(args.model, args.batch_size, shape, classes, args.seed)
    optimizer = optimizer_of(args.optimizer)
    machine = running_machine()
    shown = machine.rank == 0 and not args.json
    with ProfileDB(args.profile_db) as db:
        problem, measured = _profile(model, optimizer, db, ZOO[args.model].loss, shown)
        result = _search(problem, args, machine.ranks, shown)
        finalists = _finalists(problem, result, args.finalists)
        _measure(args, shape, classes, finalists)
        chosen = choose(finalists)
        if machine.rank == 0:
            _report(args, problem, result, finalists, chosen, measured)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(_run, argv)


if __name__ == "__main__":
    status = main()
    if status != 0:
        # Legate would go on to its own shutdown, which on several ranks waits for the others.
        sys.stdout.flush()
        os._exit(status)
