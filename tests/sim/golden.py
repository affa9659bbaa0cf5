"""Small problems whose whole timelines are kept in ``tests/golden``.

After a change of the predictions that is meant, write them anew, and look at the difference:

    python tests/sim/golden.py
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pipelines import pipeline
from simulated import finely_cut, strategy_of

from flexlegion import Model
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.model import Cost, CostModel, Linear, Shapes
from flexlegion.graph.graph import Operator
from flexlegion.machine.parts import Device
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import Timeline, full
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.strategy import ResolvedStrategy, Strategy
from flexlegion.zoo import build

FOLDER = Path(__file__).resolve().parents[1] / "golden"
Known = tuple[Problem, ResolvedStrategy]

# Each two of them are connected, 1 byte a ns in each direction.
THREE_GPUS = {
    "schema_version": 1,
    "description": "three GPUs",
    "nodes": 1,
    "device_types": {
        "GPU": {
            "kind": "gpu",
            "memory_bytes": 10**9,
            "peak_flops": {"float32": 1e12},
            "memory_bandwidth": 1e11,
            "source": "invented",
        }
    },
    "link_types": {"link": {"bandwidth": 1e9, "latency_ns": 0, "source": "invented"}},
    "node": {
        "devices": [{"type": "GPU", "count": 3}],
        "links": [
            ["gpu:0", "gpu:1", "link"],
            ["gpu:1", "gpu:2", "link"],
            ["gpu:0", "gpu:2", "link"],
        ],
    },
}


# For each sample, ns; backward tasks take twice as long.
EXE_TIME = {"embedding": 200, "lstm": 300, "dense": 200}


class FigureCosts(CostModel):
    """The exeTimes chosen for Figure 5."""

    name = "figure"

    def exe_time(self, operator: Operator, pass_: str, shapes: Shapes, device: Device) -> Cost:
        del device
        time = EXE_TIME.get(operator.kind.type, 0) * shapes[0][0]
        return Cost(max(1, 2 * time if pass_ == "backward" else time), "chosen")

    def linear(self, pass_: str, device: Device) -> tuple[Linear, str]:
        del pass_, device
        return Linear(0, 10**18), "chosen"  # 1 ns


def figure5(tasks_of_o3: int = 2) -> Known:
    """Two steps of embedding (o1, o2), recurrent (o3, o4) and linear layer (o5, o6).

    Each layer is on a GPU of its own, each operator cut into two tasks by samples: the linear layer
    uses the embedding's table, which otherwise could be cut by columns alone. What follows the
    figure (the logits' concatenation, the loss) is one task each.
    """
    model = Model(2)
    tokens = model.input((2,), "int32", name="tokens")
    o1 = model.embedding(tokens, 10, 25, 0, 1, name="o1")
    o2 = model.embedding(tokens, 10, 25, 1, 1, name="o2", share=o1)
    o3 = model.lstm(o1, 25, name="o3")
    o4 = model.lstm(o2, 25, o3.state, name="o4", share=o3.y)
    o5 = model.dense(o3.y, 10, use_bias=False, name="o5", share=o1)
    o6 = model.dense(o4.y, 10, use_bias=False, name="o6", share=o1)
    model.concat([o5, o6], axis=1, name="logits")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "three.json"
        path.write_text(json.dumps(THREE_GPUS))
        problem = _problem(model, load_machine(path), FigureCosts())
    configs = {}
    for operator in problem.graph.operators:
        layer = {"o1": 0, "o2": 0, "o3": 1, "o4": 1}.get(operator.name, 2)
        tasks = 2 if operator.name.startswith("o") else 1
        if operator.name == "o3":
            tasks = tasks_of_o3
        degrees = (tasks,) + (1,) * (len(operator.dims) - 1)
        configs[operator.name] = ParallelConfig(degrees, (f"gpu:{layer}",) * tasks)
    return problem, problem.checked(Strategy(configs))


def lenet_data() -> Known:
    """LeNet, data parallelism."""
    return _zoo(build("lenet", 64), "p100x2", "data")


def alexnet_one_weird_trick() -> Known:
    """AlexNet for small images: convolutions by samples, dense layers by channels."""
    return _zoo(build("alexnet", 16, (63, 63, 3), 10), "p100x4", "one-weird-trick")


def rnnlm_hybrid() -> Known:
    """Two steps of RNNLM: the embedding on one GPU, LSTMs by samples, projections by channels."""
    model = build("rnnlm", 16, steps=2, hidden=64, vocabulary=100)
    problem, strategy = _zoo(model, "p100x4", "data")
    configs = dict(strategy)
    for name, config in strategy.items():
        if name.startswith("embed"):
            configs[name] = ParallelConfig((1,) * len(config.degrees), ("gpu:0",))
        if name.startswith("project"):
            configs[name] = ParallelConfig((1, 1, 4), problem.devices.names)
    return problem, problem.checked(Strategy(configs))


def nmt_gnmt() -> Known:
    """Two steps of NMT, layers dealt to the GPUs of a node."""
    model = build("nmt", 8, steps=2, hidden=32, embedding=32, vocabulary=50)
    return _zoo(model, "k80x4", "gnmt")


def one_forward_one_backward(stages: int) -> Known:
    """Four micro-batches in a pipeline, of which p - s can be under way at stage s of p."""
    line = pipeline(stages, 4, [stages - stage for stage in range(stages)])
    return line.problem, line.strategy


GOLDEN: dict[str, Callable[[], Known]] = {
    "figure5": figure5,
    "lenet-p100x2-data": lenet_data,
    "alexnet-p100x4-one-weird-trick": alexnet_one_weird_trick,
    "rnnlm-p100x4-hybrid": rnnlm_hybrid,
    "nmt-k80x4-gnmt": nmt_gnmt,
    **{f"pipeline-{p}": partial(one_forward_one_backward, p) for p in (2, 4, 8)},
}


def _zoo(model: Model, machine: str, strategy: str) -> Known:
    problem = _problem(model, load_machine(machine), AnalyticCosts())
    return problem, strategy_of(problem, strategy)


def _problem(model: Model, topology: object, costs: CostModel) -> Problem:
    return finely_cut(model, topology, costs)  # type: ignore[arg-type]


def lines(timeline: Timeline) -> Iterator[str]:
    """A timeline as text: the sums, then a line for each task."""
    yield f"iteration time {timeline.iteration_time_ns}"
    yield f"bytes moved {timeline.bytes_moved}"
    yield f"computation time {timeline.computation_time_ns}"
    for name, size in timeline.peak_memory_bytes.items():
        yield f"memory of {name} peak {size} allocated {timeline.allocated_bytes[name]}"
    for row in timeline.tasks:
        of = f" of micro-batch {row['round']}" if timeline.problem.graph.micro_batches > 1 else ""
        hop = f" hop {row['hop']} {row['bytes']} bytes" if row["hop"] >= 0 else ""
        yield (
            f"{timeline.places[row['device']]}: {timeline.describe(row)}{of}{hop}, "
            f"ready {row['ready_time']} start {row['start_time']} end {row['end_time']}"
        )


def text_of(name: str) -> str:
    """What the file of a problem holds."""
    problem, strategy = GOLDEN[name]()
    return "\n".join(lines(full(problem, strategy))) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for golden in GOLDEN:
        (FOLDER / f"{golden}.txt").write_text(text_of(golden))
