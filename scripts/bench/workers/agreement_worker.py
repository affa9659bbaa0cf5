"""What training moves, holds and launches, beside plan and simulator. Run under legate.

Writes FILE.RANK, a JSON list with an object a strategy. On several ranks, a library that counts
what goes through UCX (common/ucx_bytes.cc) is loaded before Legion is.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from pathlib import Path
from typing import Any

from common.workloads import LEARNING_RATE, Workload

from flexlegion import Adam, Model
from flexlegion.base.errors import DoesNotApply
from flexlegion.cost.model import Cost, CostModel, Linear, RuntimeCosts, Shapes
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.graph.graph import Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.machine.parts import Device
from flexlegion.machine.running import running_machine, traffic
from flexlegion.machine.topology import Topology
from flexlegion.plan.coherence import moved_bytes
from flexlegion.plan.passes import PASSES
from flexlegion.profiling.local import local_topology
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import Timeline, full
from flexlegion.training.program import NO_BATCH, PREDICT, TRAIN, Batch
from flexlegion.training.trainer import run_series
from flexlegion.zoo import ZOO
from workers.tables_worker import copied, wait_until_free

WARM = 3  # iterations until nothing is new: the second is recorded
ITERATIONS = 4


class LaunchesAlone(CostModel):
    """Launches take time, and hardly anything else: it shows which tasks one is charged to."""

    name = "launches"

    def exe_time(self, operator: Operator, pass_: str, shapes: Shapes, device: Device) -> Cost:
        del operator, pass_, shapes, device
        return Cost(1, self.name)

    def linear(self, pass_: str, device: Device) -> tuple[Linear, str]:
        del pass_, device
        return Linear(1, 10**9), self.name

    def runtime(self, device: Device) -> RuntimeCosts:
        del device
        return RuntimeCosts(dispatch_ns=1000, cores=1)


def bytes_between_ranks(counter: ctypes.CDLL) -> int:
    """What this rank has written into others' memories, or sent them, until now."""
    functions = counter.bytes_written, counter.bytes_sent
    for function in functions:
        function.restype = ctypes.c_uint64
    return sum(int(function()) for function in functions)


def launches(model: Model, problem: Problem, timeline: Timeline) -> dict[str, int]:
    """How many an iteration issues; several that run as one count once.

    The simulator charges a launch to all tasks of those that are not run with the one before.
    """
    operators = problem.graph.operators

    def launch(task: Any) -> tuple[str, str]:
        pass_ = PASSES[task["pass"]]
        return pass_, "" if pass_ == "clip" else operators[task["index"]].name

    tasks = [t for t in timeline.tasks if PASSES[t["pass"]] != "load" and t["hop"] < 0]
    joined = {launch(t) for t in tasks if t["end_time"] - t["start_time"] == t["exe_time"]}
    return {
        "simulator": len(set(map(launch, tasks)) - joined),
        "legion": len(model.program.issued(TRAIN)),
    }


def measure(work: Workload, strategy: str, topology: Topology, counter: Any) -> dict[str, Any]:
    """Train with one strategy."""
    machine = running_machine()
    devices = machine.devices
    used = list(map(devices.number, devices.preferred))
    mine = [i for i in used if machine.owners[i] == machine.rank]
    in_use = traffic().in_use
    before = {i: in_use[i] for i in mine}
    model, optimizer = work.model(), Adam(LEARNING_RATE)
    model.compile(optimizer, ZOO[work.network].loss, strategy=strategy)
    program, plan = model.program, model.plan
    data, _ = model.bind(*work.data())
    batch = Batch(data, work.batch_rows(0)[0])

    def train(iterations: int) -> None:
        run_series(program, TRAIN, [batch] * iterations, lr=LEARNING_RATE)
        program.wait()

    if machine.ranks == 1:
        traffic(count_copies=True)
        train(1)
        traffic(count_copies=True)
        train(1)  # is recorded, and all others are that one again
        moved = copied(used)
    else:
        train(WARM)
        sent = bytes_between_ranks(counter)
        train(ITERATIONS)
        moved = (bytes_between_ranks(counter) - sent) // ITERATIONS
    program.stage(PREDICT, batch)
    program.step(PREDICT, work.batch_size, NO_BATCH)
    in_use = traffic().in_use
    held = {i: in_use[i] - before[i] for i in mine}
    graph = plan.graph
    problem = Problem(graph, topology, LaunchesAlone(), model.outputs, optimizer.states)
    timeline = full(problem, model.strategy)
    memory_of = {device.name: device.memory for device in topology.devices}
    splits = [
        (op, model.strategy[op.name])
        for op in graph.operators
        if any(
            degree > 1 and dim.kind is DimKind.REDUCTION
            for dim, degree in zip(op.dims, model.strategy[op.name].degrees, strict=True)
        )
    ]
    result = {
        "strategy": strategy,
        "moved": {
            "plan": moved_bytes(plan, memory_of),
            "simulator": timeline.bytes_moved,
            "legion": moved,
        },
        "memory": {
            devices.names[i]: {
                "simulator": timeline.allocated_bytes[memory_of[devices.names[i]]],
                "plan": plan.bytes_on(devices.names[i]),
                "legion": held[i],
            }
            for i in mine
        },
        "launches": launches(model, problem, timeline),
        "sums": [config.sums for _, config in splits],
    }
    model.close()
    wait_until_free(before)
    return result


def main() -> None:
    """All strategies of all networks that they apply to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workloads", type=json.loads, required=True, help="a JSON list")
    parser.add_argument("--strategies", required=True, help="separated by commas")
    parser.add_argument("--counter", help="the library that counts what goes through UCX")
    parser.add_argument("--out", required=True, metavar="FILE")
    args = parser.parse_args()
    counter = ctypes.CDLL(args.counter, mode=ctypes.RTLD_GLOBAL) if args.counter else None
    rank = running_machine().rank
    with ProfileDB(f"{args.out}.db.{rank}") as db:  # nothing of this is for the user's own
        topology = local_topology(db, measure=False)
    results = []
    for text in args.workloads:
        work = Workload.from_json(text)
        for strategy in args.strategies.split(","):
            try:
                found = measure(work, strategy, topology, counter)
            except DoesNotApply:
                continue
            results.append({"network": work.network} | found)
    Path(f"{args.out}.{rank}").write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
