"""What DLRM's tables of a million rows move and hold: by plan, by simulator, and on Legion.

    python scripts/bench/tables.py [--rows 1000000] [--json FILE]

On Legion, four GPUs in software of one process train it; without them (scripts/test.sh builds them)
the first two figures are printed alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.sides import environment, legate
from rich.console import Console
from rich.table import Table
from workers.tables_worker import MODEL, OPTIMIZERS

from flexlegion.console.text import memory
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import resolve
from flexlegion.networks.network import Network
from flexlegion.networks.references import load_model
from flexlegion.objective.training import TrainingSpec
from flexlegion.plan.coherence import moved_bytes
from flexlegion.plan.plan import Plan
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import Timeline, full

ROOT = Path(__file__).resolve().parents[2]
SOFT_GPU = ROOT / "build" / "cuda" / "tests" / "soft_gpu"
MACHINE, GPUS = "p100x4", 4
BATCH_SIZE = 32
STRATEGIES = ("data", "model", "random:1", "random:2")


def problem_of(sizes: Mapping[str, Any], optimizer: str) -> Problem:
    """DLRM's training on four GPUs."""
    model = load_model(f"{MODEL}:dlrm", BATCH_SIZE, sizes)
    network = Network.of(model, TrainingSpec(optimizer=OPTIMIZERS[optimizer]))
    return network.problem(load_machine(MACHINE), AnalyticCosts())


def simulated(problem: Problem, strategy: str) -> Timeline:
    """An iteration."""
    return full(problem, resolve(strategy, problem.graph, problem.devices))


def planned(problem: Problem, strategy: str) -> int:
    """Bytes that the plan of an iteration moves."""
    chosen = resolve(strategy, problem.graph, problem.devices)
    plan = Plan(chosen, problem.outputs, problem.optimizer_states)
    return moved_bytes(plan, {d.name: d.memory for d in problem.topology.devices})


def on_legion(sizes: Mapping[str, Any], optimizer: str, strategies: list[str]) -> list[Any]:
    """What a process of its own finds."""
    states = OPTIMIZERS[optimizer].states
    tables = 4 * sizes["tables"] * sizes["rows"] * sizes["columns"] * (1 + states) / 2**20
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result"
        options = ["--sizes", json.dumps(sizes), "--optimizer", optimizer, "--out", str(out)]
        options += ["--strategies", ",".join(strategies)]
        command = legate("tables_worker.py", 1, *options, sysmem=int(tables) + 500, gpus=GPUS)
        fbmem = ["--fbmem", str(int(tables) + 100), "--zcmem", "128"]
        libraries = f"{SOFT_GPU}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        variables = {"LD_LIBRARY_PATH": libraries, "SOFT_GPUS": str(GPUS), "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [command[0], *fbmem, *command[1:]],
            env=environment() | variables,
            check=True,
            stdout=sys.stderr,
        )
        found: list[Any] = json.loads(Path(f"{out}.0").read_text())
    return found


def main() -> None:
    """All optimizers and strategies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each table")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    sizes = {"rows": args.rows, "columns": 64, "tables": 4}
    shown = Table(title=f"DLRM, 4 tables of {args.rows:,} x 64, batch {BATCH_SIZE}, {GPUS} GPUs")
    shown.add_column("optimizer")
    shown.add_column("strategy")
    for column in ("moved: plan", "simulator", "Legion", "held: simulator", "Legion", "tables"):
        shown.add_column(column, justify="right")
    rows = []
    for optimizer in ("sgd", "adam"):
        problem = problem_of(sizes, optimizer)
        states = problem.optimizer_states
        legion: list[Any] = [None] * len(STRATEGIES)
        if SOFT_GPU.exists():
            legion = on_legion(sizes, optimizer, list(STRATEGIES))
        for strategy, found in zip(STRATEGIES, legion, strict=True):
            timeline = simulated(problem, strategy)
            row = {
                "optimizer": optimizer,
                "strategy": strategy,
                "planned_bytes": planned(problem, strategy),
                "simulated_bytes": timeline.bytes_moved,
                "copied_bytes": found and found["copied_bytes"][1],
                "simulated_memory": sum(timeline.allocated_bytes.values()),
                "memory": found and sum(found["memory_bytes"].values()),
                "tables": 4 * sizes["tables"] * args.rows * sizes["columns"] * (1 + states),
                "losses": found and found["losses"],
            }
            rows.append(row)
            moved = [row[f"{key}_bytes"] for key in ("planned", "simulated", "copied")]
            held = [row[key] for key in ("simulated_memory", "memory", "tables")]
            texts = [f"{x:,}" if x else "-" for x in moved] + [
                memory(x) if x else "-" for x in held
            ]
            shown.add_row(optimizer, strategy, *texts)
    Console(width=100).print(shown)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
