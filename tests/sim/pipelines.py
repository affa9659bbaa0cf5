"""Pipelines whose stages are equal, on devices that share a memory: what theory says of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from flexlegion import Model, Strategy
from flexlegion.cost.model import NO_RUNTIME, Cost, CostModel, Linear, RuntimeCosts, Shapes
from flexlegion.graph.graph import Operator
from flexlegion.machine.parts import Device
from flexlegion.machine.topology import Topology
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import Timeline, full
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.transforms.losses import add_losses
from flexlegion.transforms.micro_batches import micro_batched

FORWARD, BACKWARD = 1000, 2000  # ns, of a stage


def devices_of_one_memory(count: int) -> Topology:
    """So many processors, between which nothing has to move."""
    core = {
        "kind": "cpu",
        "memory_bytes": 10**12,
        "peak_flops": {"float32": 1e11},
        "memory_bandwidth": 1e10,
        "source": "invented",
    }
    machine = {
        "schema_version": 1,
        "description": "one memory",
        "nodes": 1,
        "device_types": {"core": core},
        "link_types": {},
        "node": {"devices": [{"type": "core", "count": count, "memory": "memory"}]},
    }
    with TemporaryDirectory() as folder:
        path = Path(folder) / "machine.json"
        path.write_text(json.dumps(machine))
        return load_machine(path)


class StageCosts(CostModel):
    """Of each layer, by its name, what its forward task takes; a backward task takes twice that."""

    name = "stages"

    def __init__(self, forward: Mapping[str, int]) -> None:
        self.forward = forward

    def exe_time(self, operator: Operator, pass_: str, shapes: Shapes, device: Device) -> Cost:
        del shapes, device
        time = self.forward.get(operator.name, 0)
        return Cost(max(1, 2 * time if pass_ == "backward" else time), self.name)

    def linear(self, pass_: str, device: Device) -> tuple[Linear, str]:
        del pass_, device
        return Linear(0, 10**18), self.name  # 1 ns

    def runtime(self, device: Device) -> RuntimeCosts:
        del device
        return NO_RUNTIME


def pipeline(
    stages: int,
    rounds: int,
    buffers: list[int],
    chunks: int = 1,
    layers: int = 1,
    again: bool = False,
) -> Timeline:
    """An iteration of so many micro-batches through equal stages.

    Parameters
    ----------
    stages
        One a device.
    rounds
        Micro-batches.
    buffers
        Of each stage, or of each run of layers, how many of them can be under way there.
    chunks
        How many runs of layers each device has, in turn (Megatron's interleaved schedule).
    layers
        Of each run.
    again
        Whether all layers of a run but the last are run again for the backward pass.
    """
    model = Model(2 * rounds)
    x = model.input((4,))
    where, run, forward = {}, {}, {}
    repeated = set()
    for chunk in range(chunks):
        for stage in range(stages):
            for layer in range(layers):
                name = f"chunk{chunk}.stage{stage}.layer{layer}"
                x = model.dense(x, 4, use_bias=False, name=name)
                where[name] = stage
                run[name] = chunk * stages + stage
                if again and layer < layers - 1:
                    repeated.add(name)
                forward[name] = FORWARD // (chunks * layers)
    whole = add_losses(model.graph, model.outputs, "mean_squared_error")
    graph, outputs = micro_batched(whole, model.outputs, rounds)
    topology = devices_of_one_memory(stages)
    configs = {}
    for op in graph.operators:
        stage = where.get(op.name, stages - 1)
        device = topology.names.names[stage]
        configs[op.name] = ParallelConfig(
            (1,) * len(op.dims),
            (device,),
            # The batch has the registers of the first layer.
            buffers=1
            if op.name in repeated and op.inputs[0].kind != "input"
            else min(buffers[run.get(op.name, len(buffers) - 1) % len(buffers)], rounds),
            again=op.name in repeated,
        )
    problem = Problem(graph, topology, StageCosts(forward), outputs, 0)
    resolved = Strategy(configs).checked(graph, topology.names)
    return full(problem, resolved)
