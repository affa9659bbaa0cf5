"""What an iteration of many micro-batches costs the runtime, which records it as one trace.

    python scripts/bench/rounds.py [--micro-batches 1,2,4,8,16] [--json FILE]

A small transformer is trained on one, two and four processors and on two ranks of one: by data
parallelism, and on two processors as a pipeline of two stages. If a trace of m rounds grew faster
than m, the time and the memory of a micro-batch would grow with their number.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from common.sides import environment, legate
from rich.console import Console
from rich.table import Table

# Processors a rank, ranks, and the strategy.
PLACES = ((1, 1, "data"), (2, 1, "data"), (4, 1, "data"), (1, 2, "data"), (2, 1, "pipeline"))
SYSMEM = 4000  # MiB


def measured(cpus: int, ranks: int, strategy: str, rounds: int) -> dict[str, Any]:
    """What a process, or ranks, found."""
    options = ["--micro-batches", str(rounds), "--strategy", strategy]
    command = legate("rounds_worker.py", cpus, *options, sysmem=SYSMEM, ranks=ranks)
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    if done.returncode != 0 or len(lines) != 1:
        sys.exit(f"error: {' '.join(options)}: {(done.stderr or done.stdout).strip()[-500:]}")
    found: dict[str, Any] = json.loads(lines[0].removeprefix("found "))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--micro-batches", default="1,2,4,8,16")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    numbers = [int(text) for text in args.micro_batches.split(",")]
    table = Table("cpus", "ranks", "strategy", "m", "launches", "first", box=None)
    for heading in ("iteration", "over m", "grown"):
        table.add_column(heading, justify="right")
    rows = []
    for cpus, ranks, strategy in PLACES:
        for rounds in numbers:
            if strategy == "pipeline" and rounds == 1:
                continue
            its = measured(cpus, ranks, strategy, rounds)
            rows.append(
                {"cpus": cpus, "ranks": ranks, "strategy": strategy, "micro_batches": rounds} | its
            )
            table.add_row(
                *(str(cell) for cell in (cpus, ranks, strategy, rounds, its["launches"])),
                f"{its['first_ms']:.0f} ms",
                f"{its['iteration_ms']:.1f} ms",
                f"{its['iteration_ms'] / rounds:.1f} ms",
                f"{its['grown_mib']} MiB",
            )
    Console().print(table)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
