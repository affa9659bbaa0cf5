"""Memory that training takes on Legion, beside what was predicted for the strategy.

    python scripts/bench/memory.py [--networks alexnet,rnnlm] [--full] [--json FILE]
    python scripts/bench/memory.py --simulated p100x4 [--networks alexnet,rnnlm]
    python scripts/bench/memory.py --network gpt --size steps=128 --batch-size 16 --ranks 2
        --strategies data,data+again,fsdp --micro-batches 1,4 [--json FILE]

Of each network and strategy a process trains for some iterations. "Legion" is what Legion then has
given out of the memory of its processors, all instances of the program; "simulated" is what the
simulator said that they take. The process's own peak has in it what Python, Legion and the
libraries take as well. At the end, AlexNet trains at its batch of 256 within 8 GiB.

With ``--network``, that one alone trains, as large as is said, and the time of an iteration is
shown as well. A strategy ``pipeline@3`` has three registers everywhere. On several ranks, each of
which has one processor and a memory of its own, the figures are those of the fullest.

With ``--simulated`` nothing trains: of each network by data parallelism on that machine, with its
own batch on every device, what the fullest memory holds at one time ("peak"), what is allocated
there, and what would be if each tensor was kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common.sides import environment, legate
from common.workloads import Workload
from networks import NETWORKS
from rich.console import Console
from rich.table import Table

import flexlegion
from flexlegion.console.progress import ProgressBar
from flexlegion.console.text import memory
from flexlegion.profiling.machines import load_machine
from flexlegion.zoo import ZOO, build

ITERATIONS = 3
BATCH_SIZE = 32
TOLERANCE = 0.15
# As the zoo has it: images of 224 x 224 pixels, 256 of them a batch.
LARGE = Workload("alexnet", 256, 2, samples=256)
LARGE_SYSMEM = 8000  # MiB


def reduced(name: str) -> Workload:
    """A network at the sizes of the sample that comes along."""
    return Workload(name, BATCH_SIZE, ITERATIONS, ZOO[name].sample_sizes, samples=2 * BATCH_SIZE)


class RunError(Exception):
    """A run ended before its time; the message has the end of what it said."""


def run(
    work: Workload, strategy: str, args: argparse.Namespace, sysmem: int, micro_batches: int = 1
) -> dict[str, Any]:
    """What processes of their own find: of the rank whose memory is the fullest."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result"
        options = ["--workload", work.to_json(), "--strategies", strategy, "--out", str(out)]
        options += ["--micro-batches", str(micro_batches)]
        cpus = args.cpus if args.ranks == 1 else 1
        command = legate("memory_worker.py", cpus, *options, sysmem=sysmem, ranks=args.ranks)
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment(), check=False
        )
        files = [Path(f"{out}.{rank}") for rank in range(args.ranks)]
        if done.returncode != 0 or not all(file.exists() for file in files):
            said = (done.stderr or done.stdout).strip().splitlines()
            raise RunError(f"{work.network}, {strategy}: {said[-1] if said else 'it said nothing'}")
        found = [json.loads(file.read_text())[0] for file in files]
        result: dict[str, Any] = max(found, key=lambda its: its["training"])
    return result | {
        "workload": work.to_json(),
        "error": result["simulated"] / result["training"] - 1,
    }


def table(results: list[tuple[Workload, dict[str, Any]]], title: str) -> Table:
    """All runs, one a row."""
    found = Table(title=title)
    for column in ("network", "batch", "strategy"):
        found.add_column(column)
    for column in ("simulated", "Legion", "error", "peak of process", "before"):
        found.add_column(column, justify="right")
    for work, result in results:
        found.add_row(
            work.network,
            str(work.batch_size),
            result["strategy"],
            memory(result["simulated"]),
            memory(result["training"]),
            f"{result['error']:+.1%}",
            memory(result["resident_peak"]),
            memory(result["resident_before"]),
        )
    return found


def one_network(
    args: argparse.Namespace, console: Console
) -> list[tuple[Workload, dict[str, Any]]]:
    """One network by each strategy, with each number of micro-batches."""
    sizes = dict(size.split("=") for size in args.size)
    sizes = {name: int(value) for name, value in sizes.items()}
    work = Workload(args.network, args.batch_size, ITERATIONS, sizes, samples=2 * args.batch_size)
    found = Table(title=f"{args.network}, batch {args.batch_size}, {' '.join(args.size)}, Adam")
    for column in ("strategy", "micro-batches", "simulated", "Legion", "error", "iteration"):
        found.add_column(column, justify="left" if column == "strategy" else "right")
    results = []
    for micro_batches in map(int, args.micro_batches.split(",")):
        for strategy in args.strategies.split(","):
            result = run(work, strategy, args, args.sysmem, micro_batches)
            results.append((work, result))
            found.add_row(
                strategy,
                str(micro_batches),
                memory(result["simulated"]),
                memory(result["training"]),
                f"{result['error']:+.2%}",
                f"{result['seconds']:.2f} s",
            )
    console.print(found)
    return results


def simulated(networks: list[str], machine: str) -> Table:
    """What the simulator says of all networks, one a row."""
    devices = len(load_machine(machine).devices)
    found = Table(title=f"data parallelism on {machine}, SGD; largest memory")
    for column in ("network", "batch", "peak", "allocated", "over peak", "each tensor kept"):
        found.add_column(column, justify="left" if column == "network" else "right")
    for name in networks:
        batch = devices * ZOO[name].batch_size
        model = build(name, batch)
        sharing = flexlegion.simulate(model, machine)
        keeping = flexlegion.Strategy(
            dict(sharing.strategy), granularity=flexlegion.Granularity(keep_tensors=True)
        )
        found.add_row(
            name,
            str(batch),
            memory(sharing.peak_memory_bytes),
            memory(sharing.allocated_bytes),
            f"{sharing.allocated_bytes / sharing.peak_memory_bytes:.2f}x",
            memory(flexlegion.simulate(model, machine, keeping).allocated_bytes),
        )
    return found


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--networks",
        default=",".join(ZOO),
        help=f"separated by commas, or none; default: all of {', '.join(ZOO)}",
    )
    parser.add_argument(
        "--strategies", default="data,expert,random:1", help="default: data,expert,random:1"
    )
    parser.add_argument(
        "--full", action="store_true", help="the networks' own sizes, at small batches"
    )
    parser.add_argument("--cpus", type=int, default=2, help="processors; default: 2")
    parser.add_argument("--sysmem", type=int, default=8000, help="MiB for Legion; default: 8000")
    parser.add_argument(
        "--no-large", action="store_true", help="leave out AlexNet at a batch of 256"
    )
    parser.add_argument("--simulated", metavar="MACHINE", help="only simulate, on that machine")
    parser.add_argument("--network", choices=list(ZOO), help="only that one, of the sizes given")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--micro-batches", default="1", help="separated by commas; default: 1")
    parser.add_argument("--ranks", type=int, default=1, help="of one processor each; default: 1")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    known = NETWORKS if args.full else ZOO
    args.networks = [] if args.networks == "none" else args.networks.split(",")
    for name in args.networks:
        if name not in ZOO:
            parser.error(f"'{name}' is none of {', '.join(ZOO)}")
    args.works = [NETWORKS[n] if args.full else reduced(n) for n in args.networks if n in known]
    return args


def main() -> None:
    """Run everything and print the tables; status 1 if a prediction is too far off."""
    args = options()
    console = Console(width=110)
    if args.simulated:
        console.print(simulated(args.networks, args.simulated))
        return
    if args.network:
        try:
            results = one_network(args, console)
        except RunError as e:
            sys.exit(f"error: {e}")
        finish(results, args, console)
        return
    runs = [(work, s, args.sysmem) for work in args.works for s in args.strategies.split(",")]
    if not args.no_large:
        runs.append((LARGE, "data", LARGE_SYSMEM))
    results = []
    try:
        with ProgressBar("training") as bar:
            for done, (work, strategy, sysmem) in enumerate(runs):
                bar.steps(done, len(runs))
                results.append((work, run(work, strategy, args, sysmem)))
    except RunError as e:
        sys.exit(f"error: {e}")
    ordinary = results if args.no_large else results[:-1]
    if ordinary:
        console.print(table(ordinary, f"{args.cpus} processors, Adam"))
    if not args.no_large:
        work, large = results[-1]
        console.print(table(results[-1:], f"AlexNet of 224 x 224 pixels in {LARGE_SYSMEM} MiB"))
        losses = ", ".join(f"{loss:.3f}" for loss in large["losses"])
        console.print(f"{work.iterations} iterations; mean loss so far after each: {losses}")
    finish(results, args, console)


def finish(
    results: list[tuple[Workload, dict[str, Any]]], args: argparse.Namespace, console: Console
) -> None:
    """What is the worst of them; status 1 if that is too far off."""
    worst = max((abs(result["error"]) for _, result in results), default=0.0)
    console.print(f"largest error: {worst:.1%} (bound: {TOLERANCE:.0%})")
    if args.json:
        figures = [result for _, result in results]
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")
    if worst > TOLERANCE or not all(result["finite"] for _, result in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
