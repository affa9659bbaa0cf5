"""Run under legate: networks with fused launches and without. Writes what came of it as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from networks import NETWORKS
from training_state import misplaced, train

from flexlegion import SGD, Model, ParallelConfig, Strategy
from flexlegion.cost.model import Cost, CostModel, Linear, RuntimeCosts, Shapes
from flexlegion.graph.graph import Operator
from flexlegion.machine.parts import Device
from flexlegion.plan.passes import PASSES
from flexlegion.profiling.local import local_topology
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.granularity import Granularity
from flexlegion.training.program import PREDICT, TRAIN
from flexlegion.transforms.losses import add_loss

LONGEST = (1, 3, 16)
STRATEGIES = ("single", "data", "model", "random:3")


class LaunchesAlone(CostModel):
    """Launches take time, and hardly anything else."""

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


def fused(model: Model) -> set[tuple[str, str]]:
    """Stages and operators of the launches that are fused with the one before."""
    launches = [model.plan.launches[n] for run in model.program.issued(TRAIN) for n in run[1:]]
    return {(x.pass_, x.operator.name if x.operator else "") for x in launches}


def foreseen(model: Model) -> set[tuple[str, str]]:
    """Likewise, of those that the simulator does not charge."""
    graph = model.plan.graph
    # What the losses are of: of numbers of classes, what their own logits are looked up in.
    losses = {op for op in graph.operators if op.kind.is_loss and op.kind.type != "cross_entropy"}
    losses |= {op for op in graph.operators if op.kind.type == "own_logit"}
    outputs = [op.inputs[0] for op in graph.operators if op in losses]
    clips = any(launch.pass_ == "clip" for launch in model.plan.launches)
    topology, costs = local_topology(measure=False), LaunchesAlone()
    problem = Problem(graph, topology, costs, outputs, 1, clips)

    def name(task: Any) -> str:  # the clip is nobody's
        return "" if PASSES[task["pass"]] == "clip" else graph.operators[task["index"]].name

    return {
        (PASSES[task["pass"]], name(task))
        for task in full(problem, model.strategy).tasks
        if PASSES[task["pass"]] != "load"
        and task["hop"] < 0
        and task["end_time"] - task["start_time"] == task["exe_time"]
    }


def compare(name: str, strategy: str) -> dict[str, Any]:
    """How many launches an iteration issues, by the longest run; what differs from none fused.

    Of the longest runs, also: how many launches are fused with one before, and which of these the
    simulator does not foresee, or foresees in vain.
    """
    issued, different = [], []
    reference: dict[str, np.ndarray] = {}
    for longest in LONGEST:
        model, state = train(NETWORKS[name], strategy, Granularity(fused_launches=longest))
        issued.append(len(model.program.issued(TRAIN)))
        reference = reference or state
        assert state.keys() == reference.keys()
        different += [key for key in state if not np.array_equal(state[key], reference[key])]
        different += misplaced(model, NETWORKS[name].data(model.batch_size))
        real, simulated = fused(model), foreseen(model)
        model.close()
    return {
        "issued": issued,
        "different": different,
        "fused": len(real),
        "wrong": sorted(real ^ simulated),
    }


def groups(model: Model, run: int) -> list[list[str]]:
    """The operators of the forward launches, those that run as one together."""
    launches = model.plan.launches
    return [
        [launches[n].operator.name for n in together]
        for together in model.program.issued(run)
        if launches[together[0]].pass_ == "forward"
    ]


def normalized() -> list[list[str]]:
    """Batch normalisation needs the other device twice a layer."""
    model = Model(8, seed=0)
    x = model.input((6, 6, 3))
    for n in (1, 2):
        x = model.conv2d(x, 4, 3, name=f"conv{n}")
        x = model.batch_norm(x, "relu", name=f"bn{n}")
    model.dense(model.flatten(x, name="flat"), 3, name="out")
    model.compile(SGD(0.1), "sparse_categorical_crossentropy", strategy="data")
    found = groups(model, TRAIN)
    model.close()
    return found


def awaited() -> list[list[str]]:
    """Device 1 needs `a`, so `b` does not delay it; `c` and `d` wait for other things."""
    model = Model(8, seed=0)
    x = model.input((5,))
    a = model.dense(x, 6, name="a")
    b = model.dense(a, 6, name="b")
    c = model.dense(a, 6, name="c")
    d = model.tanh(c, name="d")
    e = model.add([b, d], name="e")
    output = model.dense(model.relu(e, name="f"), 3, name="g")
    loss, where = "mean_squared_error", {"c": 1, "d": 1}
    model.compile(
        SGD(0.1),
        loss,
        strategy=Strategy(
            {
                op.name: ParallelConfig((1,) * len(op.dims), (f"cpu:{where.get(op.name, 0)}",))
                for op in add_loss(model.graph, output, loss).operators
            }
        ),
    )
    found = groups(model, PREDICT)
    model.close()
    return found


def main() -> None:
    results = {
        "equal": {f"{n} {s}": compare(n, s) for n in NETWORKS for s in STRATEGIES},
        "normalized": normalized(),
        "awaited": awaited(),
    }
    Path(sys.argv[1]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
