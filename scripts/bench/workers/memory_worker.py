"""What training takes of memory on Legion, beside what was predicted. Run under legate.

Writes FILE.RANK, a JSON list with an object a strategy: bytes of this rank's memory.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common.workloads import LEARNING_RATE, Workload

from flexlegion import Adam, Model, Strategy
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.machine.running import running_machine, traffic
from flexlegion.machine.topology import Topology
from flexlegion.objective.precision import DEFAULT_STORAGE
from flexlegion.profiling.local import local_topology
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.training.program import NO_BATCH, PREDICT, TRAIN, Batch
from flexlegion.training.trainer import run_series
from flexlegion.zoo import ZOO

PATIENCE = 20.0  # seconds
RESULTS = 1024  # bytes that results of tasks, which Legion keeps for a while, may take


def resident(peak: bool = False) -> int:
    """Bytes of this process that lie in memory, now or at most until now."""
    field = "VmHWM" if peak else "VmRSS"
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


def compiled(work: Workload, spec: str, args: argparse.Namespace) -> tuple[Model, Adam]:
    """The model under a strategy, ``NAME``, or ``NAME@B``: each operator has B registers."""
    name, _, registers = spec.partition("@")
    model, optimizer = work.model(), Adam(LEARNING_RATE)

    def compile_by(strategy: str | Strategy) -> None:
        model.compile(
            optimizer,
            ZOO[work.network].loss,
            strategy=strategy,
            storage=args.storage,
            micro_batches=args.micro_batches,
        )

    compile_by(name)
    if registers:
        of_all = {
            op: replace(config, buffers=int(registers)) for op, config in model.strategy.items()
        }
        compile_by(Strategy(of_all, spec))
    return model, optimizer


def measure(
    work: Workload, strategy: str, topology: Topology, args: argparse.Namespace
) -> dict[str, Any]:
    """Train, then predict a batch, and note what lies in this rank's memory after each."""
    machine = running_machine()
    names = machine.devices.names
    preferred = map(machine.devices.number, machine.devices.preferred)
    mine = [i for i in preferred if machine.owners[i] == machine.rank]

    def in_use() -> int:
        return traffic().in_use[mine[0]]

    before, resident_before = in_use(), resident()
    model, optimizer = compiled(work, strategy, args)
    program, graph = model.program, model.plan.graph
    data, _ = model.bind(*work.data())
    batches = [Batch(data, rows) for rows in work.batch_rows(0)]
    losses: list[float] = []

    def report(sums: Any) -> None:
        losses.append(sums.losses[0].loss / sums.losses[0].labels)

    began = time.monotonic()
    run_series(program, TRAIN, batches, lr=LEARNING_RATE, report=report)
    seconds = (time.monotonic() - began) / len(batches)
    training = in_use() - before
    of_one = batches[0].rows[: work.batch_size // args.micro_batches]
    program.stage(PREDICT, Batch(data, of_one))
    program.step(PREDICT, work.batch_size // args.micro_batches, NO_BATCH)
    with_prediction = in_use() - before
    output = graph.operators[-1].inputs[0]
    problem = Problem(graph, topology, AnalyticCosts(), output, optimizer.states)
    timeline = full(problem, model.strategy)
    memory = topology.device(names[mine[0]]).memory
    # A memory of its own, which is what plans speak of.
    alone = len(mine) == 1 or names[mine[0]].startswith("gpu:")
    result = {
        "strategy": strategy,
        "training": training,
        "seconds": seconds,
        "micro_batches": args.micro_batches,
        "simulated": timeline.allocated_bytes[memory],
        "simulated_peak": timeline.peak_memory_bytes[memory],
        "with_prediction": with_prediction,
        "planned": model.plan.bytes_on(names[mine[0]]) if alone else None,
        "memory": machine.memory_bytes[mine[0]],
        "resident_before": resident_before,
        "resident_peak": resident(peak=True),
        "losses": losses,
        "finite": bool(np.isfinite(losses).all()),
    }
    model.close()
    # Legion gives memory back some time later; what is left of one model is not the next one's.
    # Ranks look equally often, as looking issues a fence.
    deadline = time.monotonic() + (PATIENCE if machine.ranks == 1 else 0)
    while time.monotonic() < deadline and in_use() > before + RESULTS:
        time.sleep(0.01)
    result["left"] = in_use() - before
    return result


def main() -> None:
    """All strategies."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", type=Workload.from_json, required=True)
    parser.add_argument("--strategies", required=True, help="separated by commas")
    parser.add_argument("--storage", default=DEFAULT_STORAGE, help="of activations")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--out", required=True, metavar="FILE")
    args = parser.parse_args()
    rank = running_machine().rank
    with ProfileDB(f"{args.out}.db.{rank}") as db:  # nothing of this is for the user's own
        topology = local_topology(db, measure=False)
    results = [measure(args.workload, name, topology, args) for name in args.strategies.split(",")]
    Path(f"{args.out}.{rank}").write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
