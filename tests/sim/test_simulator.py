"""The native simulator against the obvious one, task by task."""

from __future__ import annotations

import numpy as np
import pytest
from obvious import build, simulate

from flexlegion import Model
from flexlegion.devices import Devices
from flexlegion.errors import UserError
from flexlegion.losses import add_loss
from flexlegion.machines import load_topology
from flexlegion.plan import Plan
from flexlegion.simulator import full
from flexlegion.strategies import resolve


def images(model: Model) -> None:
    """Halos, partial gradients, several readers of a tensor, the same one twice."""
    x = model.input((6, 5, 2))
    a = model.conv2d(x, 3, 3, padding=1, activation="relu")
    b = model.conv2d(x, 3, 1)
    c = model.add([a, b, a])
    d = model.concat([model.pool2d(c, 2), model.pool2d(a, 2, kind="average")])
    model.dense(model.flatten(d), 4)


def sequences(model: Model) -> None:
    """Three dimensions, and a softmax that reads whole rows."""
    x = model.softmax(model.dense(model.input((3, 4)), 5))
    model.dense(model.flatten(x), 3)


def plan_of(build_model, strategy: str, devices: Devices, states: int = 1) -> Plan:
    model = Model(4)
    build_model(model)
    output = model.graph.operators[-1].output
    graph = add_loss(model.graph, output, "sparse_categorical_crossentropy")
    return Plan(graph, resolve(strategy, graph, devices), devices, output, states)


@pytest.mark.parametrize("machine", ["p100x4", "p100x8", "k80x8", "v100x8"])
@pytest.mark.parametrize("network", [images, sequences])
def test_agrees_with_the_obvious_simulator(network, machine: str) -> None:
    topology = load_topology(machine)
    devices = Devices(topology.names.names[:4] + topology.names.names[-2:])
    for seed in range(6):
        strategy = ["data", "model", "single"][seed] if 0 < seed < 3 else f"random:{seed}"
        if strategy == "data":
            devices = Devices(topology.names.names[:4])
        plan = plan_of(network, strategy, devices)
        rng = np.random.default_rng(seed)
        times = [rng.integers(0, 20_000, len(launch.devices)).tolist() for launch in plan.launches]
        timeline = full(plan, topology, times)
        tasks = build(plan, topology, times)
        assert timeline.iteration_time_ns == simulate(tasks)
        assert len(timeline.tasks) == len(tasks)
        for ours, theirs in zip(timeline.tasks, tasks, strict=True):
            assert ours.device == theirs.device
            assert ours.bytes == theirs.bytes
            assert ours.exe_time == theirs.exe_time
            assert ours.ready_time == theirs.ready_time
            assert ours.start_time == theirs.start_time
            assert ours.end_time == theirs.end_time


def test_splitting_a_weight_shrinks_what_is_synchronised() -> None:
    """Data parallelism moves every partial gradient and every updated shard; parameters move none.

    A dense layer (8 -> 6) on two GPUs: 54 weights of 4 bytes. Each GPU sends half of its partial
    gradient, and its updated half: 4 x 108 bytes. Split by channels, the gradients stay where they
    are, but the layer's input, its partial gradient, and the logits move.
    """
    topology = load_topology("p100x2")

    def dense(model: Model) -> None:
        model.dense(model.input((8,)), 6)

    moved = full(plan := plan_of(dense, "data", topology.names), topology, ones(plan)).bytes_moved
    assert moved == 4 * 108


def ones(plan: Plan) -> list[list[int]]:
    return [[1] * len(launch.devices) for launch in plan.launches]


def test_a_device_that_the_machine_lacks() -> None:
    plan = plan_of(sequences, "data", Devices.of(cpus=2))
    with pytest.raises(UserError, match="the machine has no device cpu:0; it has gpu:0"):
        full(plan, load_topology("p100x4"), ones(plan))
