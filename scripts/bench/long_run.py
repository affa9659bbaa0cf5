"""Long trainings: whether memory stays flat and speed steady.

    python scripts/bench/long_run.py [--iterations 10000] [--json FILE]

LeNet and RNNLM, which is reduced to the sizes of its sample, train on two processors. Of each tenth
of the iterations: samples a second, and the process's resident memory at its end. Exit status 1 if
at the end more is resident than after the first hundred iterations, in which Legion records its
traces and buffers grow to their sizes, by more than --tolerance. Speed depends on what else the
machine does, so it is shown only.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common.sides import environment, legate
from common.workloads import Workload
from rich.console import Console
from rich.table import Table

from flexlegion.console.progress import ProgressBar
from flexlegion.console.text import memory
from flexlegion.zoo import ZOO

SETTLED = 100  # iterations, from which on nothing may grow
TENTHS = 10
WORKS = {
    "lenet": Workload("lenet", 64, 0, samples=1024),
    "rnnlm": Workload("rnnlm", 32, 0, ZOO["rnnlm"].sample_sizes, samples=1024),
}

Line = dict[str, float]


def train(work: Workload, args: argparse.Namespace) -> list[Line]:
    """The lines of a worker, from the first."""
    options = ["--workload", work.to_json(), "--strategy", args.strategy, "--every", str(SETTLED)]
    command = legate("long_run_worker.py", args.cpus, *options)
    lines: list[Line] = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment()
        )
        assert process.stdout is not None
        with process, ProgressBar(work.network) as bar:
            for text in process.stdout:
                if text.startswith("{"):
                    lines.append(json.loads(text))
                    bar.steps(int(lines[-1]["done"]), work.iterations)
        if process.returncode != 0 or len(lines) < work.iterations // SETTLED:
            errors.seek(0)
            said = errors.read().strip().splitlines()
            sys.exit(f"error: {work.network}: " + (said[-1] if said else "it said nothing"))
    return lines


def tenths(work: Workload, lines: list[Line]) -> list[dict[str, float]]:
    """Samples a second and resident memory, of each tenth of the iterations after the first line.

    The first tenth begins at the first line, `SETTLED` iterations after the start.
    """
    found = []
    for number in range(TENTHS):
        first = number * (len(lines) - 1) // TENTHS
        last = (number + 1) * (len(lines) - 1) // TENTHS
        seconds = lines[last]["seconds"] - lines[first]["seconds"]
        iterations = lines[last]["done"] - lines[first]["done"]
        found.append(
            {
                "iterations": lines[last]["done"],
                "samples_per_second": iterations * work.batch_size / seconds,
                "resident": lines[last]["resident"],
            }
        )
    return found


def growth(lines: list[Line]) -> float:
    """Bytes that are resident at the end beyond those after the first line."""
    return lines[-1]["resident"] - lines[0]["resident"]


def report(work: Workload, lines: list[Line], tolerance: float, console: Console) -> dict[str, Any]:
    """Print the table of a network; all its figures."""
    rows = tenths(work, lines)
    start = lines[0]["resident"]
    table = Table(title=f"{work.network}, batch {work.batch_size}")
    for column in ("iterations", "samples/s", "resident", f"more than after {SETTLED}"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row['iterations']:,.0f}",
            f"{row['samples_per_second']:,.1f}",
            memory(int(row["resident"])),
            f"{(row['resident'] - start) / 2**20:+.2f} MiB",
        )
    console.print(table)
    rates = [row["samples_per_second"] for row in rows]
    more = growth(lines)
    flat = more <= tolerance * start
    console.print(
        f"  memory {'flat' if flat else 'GROWS'}: {more / start:+.2%} (bound: {tolerance:.0%}); "
        f"speed: the slowest tenth {min(rates) / max(rates):.2f} of the fastest, the last "
        f"{rates[-1] / rates[0]:.2f} of the first\n",
        highlight=False,
    )
    return {"workload": work.to_json(), "lines": lines, "tenths": rows, "flat": flat}


def main() -> None:
    """Run all and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default=",".join(WORKS), help=f"default: {','.join(WORKS)}")
    parser.add_argument("--iterations", type=int, default=10_000, help="default: 10000")
    parser.add_argument("--strategy", default="data", help="default: data")
    parser.add_argument("--cpus", type=int, default=2, help="processors; default: 2")
    parser.add_argument(
        "--tolerance", type=float, default=0.01, help="share of the memory; default: 0.01"
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    names = args.networks.split(",")
    for name in names:
        if name not in WORKS:
            parser.error(f"'{name}' is none of {', '.join(WORKS)}")
    if args.iterations < (TENTHS + 1) * SETTLED:
        parser.error(f"--iterations has to be at least {(TENTHS + 1) * SETTLED}")
    console = Console(width=110)
    results: dict[str, Any] = {}
    for name in names:
        work = dataclasses.replace(WORKS[name], iterations=args.iterations)
        results[name] = report(work, train(work, args), args.tolerance, console)
        if args.json:
            Path(args.json).write_text(json.dumps(results, indent=2) + "\n")
    if not all(result["flat"] for result in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
