"""Activations that are stored as bfloat16: which they are, and what they then take and move."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from networks import NETWORKS
from zoo_cases import CASES

from flexlegion import Model, UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.measured import task_key
from flexlegion.data.synthetic import made_up
from flexlegion.known_strategies import resolve
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.plan.coherence import moved_bytes
from flexlegion.plan.plan import Plan
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.simulator import full

STRATEGIES = ("single", "data", "model", "expert", *(f"random:{seed}" for seed in range(1, 4)))


def mlp(loss: str = "sparse_categorical_crossentropy") -> Model:
    """A normalised hidden layer; its input has a gradient."""
    model = Model(8)
    x = model.input((12,), name="x", requires_gradient=True)
    hidden = model.batch_norm(model.dense(x, 16, name="hidden"), name="norm")
    model.dense(hidden, 4, name="out")
    model.loss = loss
    return model


def types(network: Network) -> dict[str, str]:
    return {tensor.name: tensor.dtype for tensor in network.graph.tensors}


def test_which_tensors_are_narrow() -> None:
    """Activations, and weights that are matrices; not biases, labels, statistics, nor losses.

    The model's own graph stays.
    """
    model = mlp()
    network = Network.of(model, TrainingSpec(storage="bf16"))
    found = types(network)
    narrow = {name for name, dtype in found.items() if dtype == "bfloat16"}
    activations = {"x", "hidden.output", "norm.output", "out.output"}
    assert narrow == activations | {"hidden.kernel", "out.kernel"}
    assert found["labels"] == "int32"
    assert {tensor.dtype for tensor in model.graph.tensors} == {"float32"}
    assert set(types(Network.of(model)).values()) == {"float32", "int32"}
    assert all(t in network.graph for t in network.outputs)
    masters = {tensor.name for tensor in network.graph.weights if tensor.has_master}
    assert masters == {"hidden.kernel", "out.kernel"}
    assert network.fingerprint == Network.of(model).fingerprint
    assert "stored as bf16" in str(network)
    assert network.about()["storage"] == "bf16"


def test_targets_of_real_numbers_keep_their_precision() -> None:
    network = Network.of(mlp("mean_squared_error"), TrainingSpec(storage="bf16"))
    assert types(network)["labels"] == "float32"
    assert types(network)["out.output"] == "bfloat16"


def test_data_of_the_host_know_nothing_of_it() -> None:
    """What is made up for a network has types that NumPy knows."""
    wide, narrow = (
        Network.of(mlp(), TrainingSpec(storage=storage)) for storage in ("fp32", "bf16")
    )
    made = [made_up(its.graph, 4) for its in (wide, narrow)]
    assert [x.dtype for x in made[1][0].values()] == [np.float32]
    np.testing.assert_equal(made[0], made[1])


def test_gradients_of_float16_are_scaled() -> None:
    """Their norm is found before they are used, whether or not the optimizer clips."""
    passes = {}
    for storage in ("bf16", "fp16"):
        network = Network.of(mlp(), TrainingSpec(storage=storage))
        names = load_machine("p100x2").names
        plan = Plan(resolve("data", network.graph, names), network.outputs)
        assert plan.facts.scales == (storage == "fp16")
        passes[storage] = [launch.pass_ for launch in plan.launches]
    others = [pass_ for pass_ in passes["fp16"] if pass_ not in ("norm", "clip")]
    assert others == passes["bf16"]
    assert passes["fp16"].count("clip") == 1
    assert passes["fp16"].count("norm") == passes["fp16"].count("update") > 0


def test_tasks_are_measured_apart() -> None:
    """By what the activations of an operator are, whatever its output is."""
    keys = {}
    for storage in ("fp32", "bf16"):
        graph = Network.of(mlp(), TrainingSpec(storage=storage)).graph
        for operator in graph.operators:
            shapes = tuple(tensor.shape for _, tensor, _ in operator.operands)
            keys[storage, operator.name] = task_key(operator, "forward", shapes).data_type
    assert keys["fp32", "norm.statistics"] == keys["fp32", "hidden"] == "float32"
    assert keys["bf16", "norm.statistics"] == keys["bf16", "hidden"] == "bfloat16"
    assert keys["bf16", "norm.moments"] == "float32"


@pytest.mark.parametrize("name", [*CASES, *NETWORKS])
def test_plan_and_simulator_agree(name: str) -> None:
    """On the bytes of each memory, and on those that move between memories."""
    case = CASES[name] if name in CASES else NETWORKS[name]
    weights = getattr(case, "loss_weights", None)
    topology = load_machine("p100x4")
    networks = [
        Network.of(case.model(), TrainingSpec(case.loss, weights, case.optimizer, storage=storage))
        for storage in ("fp32", "bf16", "fp16")
    ]
    for strategy in STRATEGIES:
        wide, narrow, scaled = [], [], []
        for network, sizes in zip(networks, (wide, narrow, scaled), strict=True):
            problem = network.problem(topology, AnalyticCosts())
            graph, states = network.graph, network.training.optimizer.states
            resolved = resolve(strategy, graph, topology.names)
            plan = Plan(resolved, network.outputs, states, network.training.optimizer.clips)
            timeline = full(problem, resolved)
            moved = moved_bytes(plan, {device.name: device.memory for device in topology.devices})
            assert timeline.bytes_moved == moved, strategy
            for device in topology.devices:
                planned = plan.bytes_on(device.name)
                assert timeline.allocated_bytes[device.memory] == planned, (strategy, device.name)
            sizes.append(moved)
        assert 2 * narrow[0] >= wide[0] >= narrow[0]
        if case.optimizer.clips:  # or norms move as well
            assert scaled == narrow


def test_what_moves_is_halved() -> None:
    """By hand: (8, 16) from one GPU to another and its gradient back, of 2 bytes an element."""
    model = Model(8)
    x = model.input((12,), name="x")
    model.dense(model.dense(x, 16, name="a"), 4, name="b")
    for storage, size in (("fp32", 4), ("bf16", 2)):
        network = Network.of(model, TrainingSpec(storage=storage))
        problem = network.problem(load_machine("p100x4"), AnalyticCosts())
        strategy = resolve("single", network.graph, problem.devices)
        apart = strategy.changed({"a": replace(strategy["a"], devices=("gpu:1",))})
        assert full(problem, apart).bytes_moved == 2 * 8 * 16 * size


def test_mistakes() -> None:
    with pytest.raises(
        UserError,
        match=r"unknown storage 'bf8'; choose one of fp32, bf16, fp16",
    ):
        TrainingSpec(storage="bf8")
    with pytest.raises(UserError, match="has type bfloat16, but only float32 or int32"):
        Model(8).input((4,), "bfloat16")  # type: ignore[arg-type]


def test_a_plan_prints_the_bytes_of_elements_as_they_are_stored() -> None:
    """The sum of what `plan` prints for activations halves; weights' gradients stay wide."""

    def printed(storage: str) -> dict[str, int]:
        network = Network.of(mlp(), TrainingSpec(storage=storage))
        devices = load_machine("p100x2").names
        strategy = resolve("data", network.graph, devices)
        plan = Plan(strategy, network.outputs)
        sizes: dict[str, int] = {}
        for line in plan.describe().splitlines():
            if match := re.search(r" (\S+)( gradient)? \[[^]]*\]  ([\d,]+) bytes", line):
                name = f"{match[1]}{match[2] or ''}"
                sizes[name] = max(sizes.get(name, 0), int(match[3].replace(",", "")))
        return sizes

    wide, narrow = printed("fp32"), printed("bf16")
    for name in ("x", "hidden.output", "out.output", "hidden.output gradient", "hidden.kernel"):
        assert 2 * narrow[name] == wide[name] > 0, name
    for name in ("hidden.kernel gradient", "hidden.bias"):
        assert narrow[name] == wide[name] > 0, name
