"""How lean the runtime is: overhead a task, bytes copied, and speed beside PyTorch, in one run.

    python scripts/bench/runtime.py

Both sides keep a process each; rounds alternate between them, and whoever does not compute is
stopped, so that neither disturbs the other. Medians over rounds are compared. Needs the ``dev``
extra (PyTorch), and a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from common.sides import WORKERS, Side, alternate, best, environment, legate, ratios
from common.workloads import Workload
from rich.console import Console
from rich.table import Table

TORCH_MODES = {"eager": [], "channels_last": ["--channels-last"], "compiled": ["--compiled"]}
WORKLOADS = {
    "lenet": Workload("lenet", 256, 50),
    "mlp4096": Workload(
        "mlp", 256, 4, {"input_shape": (4096,), "classes": 4096, "hidden": (4096, 4096, 4096)}
    ),
}
STRATEGIES = {"lenet": ("data",), "mlp4096": ("data", "parameter")}
TARGETS = {"lenet": 1.0, "mlp4096": 1.5}


def compare(workload: str, cpus: int, rounds: int) -> list[Side]:
    """Alternate rounds of all sides."""
    commands: dict[str, list[str]] = {}
    work = WORKLOADS[workload].to_json()
    for strategy in STRATEGIES[workload]:
        options = ["--workload", work, "--strategy", strategy]
        commands[f"flexlegion {strategy}"] = legate("flexlegion_worker.py", cpus, *options)
    for mode, options in TORCH_MODES.items():
        if mode == "channels_last" and workload != "lenet":
            continue
        command = [sys.executable, str(WORKERS / "torch_worker.py"), "--workload", work]
        commands[f"PyTorch {mode}"] = [*command, "--threads", str(cpus), *options]
    return alternate(commands, rounds)


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cpus", type=int, default=2, help="processors of each side; default: 2")
    parser.add_argument("--rounds", type=int, default=7, help="default: 7")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    console = Console(width=110)
    results: dict[str, Any] = {}

    output = subprocess.run(
        legate("overhead_worker.py", 2),
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    ).stdout
    overhead = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    micro = statistics.median(overhead["microseconds"])
    results["overhead_us_per_task"] = overhead["microseconds"]
    console.print(
        f"overhead: {micro:.1f} us per point task with the trace "
        f"({min(overhead['microseconds']):.1f} to {max(overhead['microseconds']):.1f} in "
        f"{len(overhead['microseconds'])} rounds; target: 15 or less)"
    )
    for workload in STRATEGIES:
        sides = compare(workload, args.cpus, args.rounds)
        table = Table(title=workload)
        for column in ("side", "samples/s, median", "lowest", "highest", "copied bytes"):
            table.add_column(column, justify="left" if column == "side" else "right")
        for side in sides:
            copied = side.ready.get("copied_bytes", "")
            table.add_row(
                side.name,
                f"{side.median:,.0f}",
                f"{min(side.rates):,.0f}",
                f"{max(side.rates):,.0f}",
                str(copied),
            )
        console.print(table)
        ours, theirs = (
            best([side for side in sides if side.name.startswith(prefix)])
            for prefix in ("flexlegion", "PyTorch")
        )
        paired = ratios(ours, theirs)
        ratio = statistics.median(paired)
        console.print(
            f"{workload}: {ours.name} is {ratio:.2f}x {theirs.name} "
            f"({min(paired):.2f} to {max(paired):.2f}; target: {TARGETS[workload]:.1f}x)\n"
        )
        results[workload] = {
            "rates": {side.name: side.rates for side in sides},
            "copied_bytes": {s.name: s.ready["copied_bytes"] for s in sides if "tasks" in s.ready},
            "ratio": ratio,
        }
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
