"""Run under legate: measures LeNet's tasks; writes what it found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from flexlegion import UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.measured import MeasuredCosts
from flexlegion.cost.model import Shapes
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.graph.graph import Graph
from flexlegion.known_strategies import resolve
from flexlegion.machine.parts import Device
from flexlegion.machine.running import running_machine
from flexlegion.machine.topology import Topology
from flexlegion.ops.elementwise import Relu
from flexlegion.profiling.local import local_topology
from flexlegion.profiling.local_links import measure_link
from flexlegion.profiling.machines import load_machine
from flexlegion.profiling.tasks import (
    TaskRequest,
    measure,
    measure_linears,
    task_requests,
)
from flexlegion.profiling.timing import Repeats, kernel_library
from flexlegion.sim.problem import Problem
from flexlegion.transforms.losses import add_loss
from flexlegion.zoo import build

BATCH = 64
QUICK = Repeats(1, 3, 3, 0)


def shapes_of(request: TaskRequest, problem: Problem) -> Shapes:
    """What a cost model takes as the task's shapes."""
    parts = problem.parts(problem.operator_numbers[request.operator.name], request.degrees)
    ranks = [len(tensor.shape) for _, tensor, _ in request.operator.operands]
    rows = zip(parts[request.part], ranks, strict=True)
    return tuple(tuple(int(extent) for extent in row[:rank]) for row, rank in rows)


def described(topology: Topology) -> dict[str, Any]:
    """A topology as JSON has it."""
    return {
        "devices": [
            {**vars(device), "peak_flops": dict(device.peak_flops)} for device in topology.devices
        ],
        "links": [vars(link) for link in topology.links],
        "description": topology.description,
    }


def message(request: TaskRequest, db: ProfileDB) -> str:
    """The one sentence with which a request is refused."""
    try:
        measure([request], db)
    except UserError as e:
        return str(e)
    return ""


def big(device: Device, megabytes: int) -> TaskRequest:
    """A backward task that needs three tensors of that size."""
    graph = Graph()
    graph.add(Relu(), [graph.add_input("x", (megabytes, 1024, 256), "float32", True)], "relu")
    return TaskRequest(graph.operators[0], (1, 1, 1), 0, "backward", device)


def alone(db: ProfileDB, topology: Topology) -> dict[str, Any]:
    """What only one rank is asked for: memory, mistakes."""
    device = topology.devices[0]
    big_ones = [
        measure([big(device, size)], db, repeats=Repeats(1, 1, 1, 0)) for size in (500, 501, 502)
    ]
    shipped = load_machine("p100x4").device("gpu:0")
    try:
        measure_link(0, len(topology.devices) - 1)
        no_link = ""
    except UserError as e:
        no_link = str(e)
    return {
        "big": big_ones,
        "too_big": message(big(device, 2000), db),
        "elsewhere": message(
            TaskRequest(big(device, 1).operator, (1, 1, 1), 0, "forward", shipped), db
        ),
        "no_link": no_link,
    }


def main() -> None:
    folder = Path(sys.argv[1])
    machine = running_machine()
    db = ProfileDB(folder / f"profiles-{machine.rank}.sqlite")
    topology = local_topology(db)
    again = local_topology(db)
    model = build("lenet", BATCH)
    output = model.graph.operators[-1].output
    graph = add_loss(model.graph, output, "sparse_categorical_crossentropy")
    requests = [
        request
        for name in ("single", "data", "random:3")
        for request in task_requests(resolve(name, graph, machine.devices), topology)
    ]
    progress: list[tuple[int, int]] = []
    count = measure(requests, db, lambda done, total: progress.append((done, total)), QUICK)
    device = topology.devices[0]
    lines = measure_linears(device, db, repeats=QUICK)
    costs = MeasuredCosts(db, AnalyticCosts())
    measured = {}
    problem = Problem(graph, topology, costs, output)
    for request in requests:
        if request.pass_ == "backward" and request.operator not in problem.facts.backward:
            continue  # there is no such task
        shapes = shapes_of(request, problem)
        cost = costs.exe_time(request.operator, request.pass_, shapes, request.device)
        key = f"{request.operator.name} {request.pass_} {shapes[-1]}"
        measured[key] = [cost.time_ns, cost.source, cost.contention]
    result = {
        "ranks": machine.ranks,
        "topology": described(topology),
        "again": described(again),
        "count": count,
        "second": measure(requests, db),
        "progress": progress,
        "lines": lines,
        "lines_again": measure_linears(device, db),
        "linear": {s: vars(costs.linear(s, device)[0]) for s in ("update", "load", "sum")},
        "measured": measured,
        "alone": [times.alone_ns for times in db.tasks(device.model, kernel_library()).values()],
    }
    if machine.ranks == 1:
        result |= alone(db, topology)
    (folder / f"found-{machine.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
