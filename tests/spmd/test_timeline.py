"""Programs' iterations: what they send, keep and take, by hand and beside what was published."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import pytest

import flexlegion as fl
from flexlegion.base.errors import UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.kernels import Kernels
from flexlegion.known_strategies import named
from flexlegion.machine.files import described_machine
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.spmd.collectives import Collectives
from flexlegion.spmd.program import program_of
from flexlegion.spmd.steps import StageSteps
from flexlegion.spmd.system import PYTORCH, System
from flexlegion.spmd.timeline import ProgramTimeline, Training, simulated
from flexlegion.spmd.ways import Ways, divided
from flexlegion.zoo import build

GPT = {"layers": 4, "hidden": 512, "heads": 8, "steps": 128, "vocabulary": 1000}


def _problem(machine: str, model: fl.Model, **training: Any) -> Problem:
    network = Network.of(model, TrainingSpec.of(**training))
    return network.problem(described_machine(machine), AnalyticCosts())


def _of_ways(
    problem: Problem, ways: Ways, system: System = PYTORCH, kernels: Kernels | None = None
) -> ProgramTimeline:
    costs = AnalyticCosts("float32", kernels or Kernels())
    states = problem.optimizer_states
    return simulated(
        divided(problem.graph, ways), problem.topology, costs, Training(states), system
    )


def _gpt(machine: str, batch: int = 8, **training: Any) -> Problem:
    return _problem(machine, build("gpt", batch, **GPT), **training)


def test_one_device_takes_what_its_tasks_take() -> None:
    problem = _gpt("p100x1")
    its = _of_ways(problem, Ways())
    parts = its.parts_ns
    assert its.iteration_time_ns == parts["forward"] + parts["backward"] + parts["update"]
    assert its.sent_bytes == 0
    # The runtime's simulation has the same tasks, beside those of reshapes, which are no views.
    runtime = full(problem, named("data", problem)).iteration_time_ns
    assert 0.8 * runtime < its.iteration_time_ns <= runtime


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_bytes_of_data_parallelism(devices: int) -> None:
    """Gradients are all-reduced, or scattered; weights gathered once, or by ZeRO-3 twice."""
    problem = _gpt(f"a100x{devices}")
    weights = 4 * sum(prod(weight.shape) for weight in problem.graph.weights)
    share = (devices - 1) / devices
    for shards, times in ((0, 2), (1, 2), (2, 2), (3, 3)):
        its = _of_ways(problem, Ways(devices, shards=shards))
        assert its.sent_bytes == pytest.approx(times * share * weights, rel=1e-3)


@pytest.mark.parametrize("sequence", [False, True])
def test_bytes_of_tensor_parallelism(sequence: bool) -> None:
    """Four all-reduces of what lies between pairs a block, or as many gathers and scatters."""
    devices, batch = 4, 8
    problem = _gpt(f"a100x{devices}", batch)
    its = _of_ways(problem, Ways(tensor=devices, sequence=sequence))
    between = 4 * batch * GPT["steps"] * GPT["hidden"]
    blocks = 4 * GPT["layers"] * 2 * (devices - 1) / devices * between
    # The table's rows, and the logits' columns before the loss, are a pair of their own.
    ends = 4 * 2 * (devices - 1) / devices * between
    small = 4 * 8 * GPT["steps"] * batch * devices  # sums of the loss
    norms = 0 if not sequence else 8 * 10 * 2 * GPT["hidden"] * 4
    assert blocks < its.sent_bytes < blocks + ends + small + norms


def test_what_is_kept() -> None:
    """Adam in single precision: 16 bytes a weight; stages of ZeRO cut them one after another."""
    devices = 4
    problem = _gpt(f"a100x{devices}", optimizer="adam")
    weights = 4 * sum(prod(weight.shape) for weight in problem.graph.weights)
    for shards in range(4):
        (its,) = _of_ways(problem, Ways(devices, shards=shards)).memory
        cut = [devices if shards >= stage else 1 for stage in (3, 2, 1)]
        expected = [weights / cut[0], weights / cut[1], 2 * weights / cut[2]]
        assert [its.weights, its.gradients, its.states] == pytest.approx(expected, rel=1e-3)


def test_recomputation_keeps_inputs_of_blocks() -> None:
    problem = _gpt("a100x1", batch=64)
    usual, again = (_of_ways(problem, Ways(again=name)) for name in ("none", "full"))
    assert again.parts_ns["again"] == pytest.approx(usual.parts_ns["forward"], rel=0.35)
    assert again.parts_ns["again"] < usual.parts_ns["forward"]
    assert again.memory[0].activations < usual.memory[0].activations / 3
    attention = _of_ways(problem, Ways(again="attention"))
    assert 0 < attention.parts_ns["again"] < again.parts_ns["again"]


def test_scores_are_kept_where_attention_is_not_one_kernel() -> None:
    problem = _gpt("a100x1", batch=64)
    system = System(attention="unfused")
    fused = _of_ways(problem, Ways())
    unfused = _of_ways(problem, Ways(), system, Kernels(attention="unfused"))
    scores = GPT["layers"] * 64 * GPT["heads"] * GPT["steps"] ** 2 * 4
    assert unfused.memory[0].activations - fused.memory[0].activations == scores
    assert unfused.iteration_time_ns > fused.iteration_time_ns


def test_a_pipeline_has_its_bubble() -> None:
    problem = _gpt("a100x4", batch=16, micro_batches=8)
    its = _of_ways(problem, Ways(pipeline=4))
    working = its.parts_ns["forward"] + its.parts_ns["backward"]
    assert its.parts_ns["bubble"] > 3 / 11 * working * 0.8
    assert len(its.memory) == 4
    assert its.memory[0].activations > its.memory[2].activations  # 4 under way, and 2


def test_hybrid_shards_gather_inside_nodes() -> None:
    """Shards of a node's devices are repeated in the other node: nothing is gathered between."""
    problem = _gpt("v100x16", batch=16)
    whole = _of_ways(problem, Ways(16, shards=3))
    hybrid = _of_ways(problem, Ways(16, shards=3, replicas=2))
    assert hybrid.busy_ns["weights"] < whole.busy_ns["weights"] / 2
    assert hybrid.memory[0].states == 2 * whole.memory[0].states


def test_strategies_are_programs() -> None:
    """What `data` and `megatron` say of SOAP; what makes no grid is refused by name."""
    problem = _gpt("p100x4")
    devices = [device.name for device in problem.topology.devices]
    for name in ("data", "megatron", "expert"):
        strategy = named(name, problem)
        program = program_of(problem.graph, strategy, devices)
        its = simulated(program, problem.topology, AnalyticCosts(), Training())
        runtime = full(problem, strategy).iteration_time_ns
        assert 0.4 * runtime < its.iteration_time_ns < 2 * runtime, name
    with pytest.raises(UserError, match="tasks at no grid"):
        program_of(problem.graph, named("random:3", problem), devices)


def test_experts_and_lengths() -> None:
    """Devices of data parallelism share experts; a length is dealt out evenly."""
    sizes = {"layers": 2, "hidden": 256, "heads": 4, "kv_heads": 4, "steps": 128, "experts": 4}
    problem = _problem("a100x4", build("moe", 8, ffn=512, vocabulary=500, **sizes))
    copied, shared = _of_ways(problem, Ways(4)), _of_ways(problem, Ways(4, expert=4))
    assert shared.memory[0].weights < copied.memory[0].weights
    # Rows go to the two experts that are chosen for them and back, in both passes, in two blocks.
    rows = 2 * 8 / 4 * 128 * 256 * 4
    gates = 8 / 4 * 128 * 4 * 4
    moved = 3 / 4 * 2 * 4 * (rows + gates)
    weights = sum(prod(weight.shape) for weight in problem.graph.weights)
    experts = 2 * 3 * 4 * 512 * 256
    reduced = 2 * 3 / 4 * 4 * (weights - experts)
    assert shared.sent_bytes == pytest.approx(moved + reduced, rel=0.02)
    gpt = _gpt("a100x4")
    of = StageSteps(
        divided(gpt.graph, Ways(context=4)),
        gpt.topology,
        AnalyticCosts(),
        Collectives(gpt.topology),
        PYTORCH,
    )
    program, collectives = divided(gpt.graph, Ways()), Collectives(gpt.topology)
    one = StageSteps(program, gpt.topology, AnalyticCosts(), collectives, PYTORCH)
    attention = next(op for op in gpt.graph.operators if op.name == "block1.attention")
    whole = one.compute_ns(attention, "forward")
    assert of.compute_ns(attention, "forward") == pytest.approx(whole / 4, rel=0.01)


@pytest.mark.parametrize("ways", [Ways(tensor=2), Ways(context=2), Ways(2, expert=2)])
def test_nothing_to_split(ways: Ways) -> None:
    model = fl.Model(8)
    model.dense(model.input((4,)), 4)
    model.loss = "mean_squared_error"
    with pytest.raises(UserError, match=r"does not have|has none"):
        divided(_problem("a100x2", model).graph, ways)


def test_too_few_samples() -> None:
    with pytest.raises(UserError, match="dp=8 needs as many samples"):
        divided(_gpt("a100x8", batch=4).graph, Ways(8))


def test_too_few_operators_for_the_stages() -> None:
    model = fl.Model(8)
    model.dense(model.input((4,)), 4)
    model.loss = "mean_squared_error"
    problem = _problem("a100x8", model, micro_batches=8)
    with pytest.raises(UserError, match="too few operators for 8 stages"):
        divided(problem.graph, Ways(pipeline=8))


# Settings and iterations that others published: (model, machine, batch, micro-batches, ways, s).
MEGATRON = System(gradients="half", weights="half", scatters=True, attention="unfused")
UNFUSED = Kernels(attention="unfused", dropout="fused", loss="by steps")
PUBLISHED: dict[str, tuple[Mapping[str, Any], str, int, int, Ways, float]] = {
    # Narayanan et al. 2021, table 1: 137 TFLOP/s, by their formula.
    "Megatron-LM 1.7B": (
        {"layers": 24, "hidden": 2304, "heads": 24, "steps": 2048, "vocabulary": 51200},
        "a100x32",
        512,
        1,
        Ways(32, again="full"),
        3.528,
    ),
    # Korthikanti et al. 2022, table 5: 22B, selective recomputation, sequence parallelism.
    "Megatron-LM 22B": (
        {"layers": 48, "hidden": 6144, "heads": 64, "steps": 2048, "vocabulary": 51200},
        "a100x8",
        4,
        1,
        Ways(tensor=8, sequence=True, again="attention"),
        1.1,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_runs(name: str) -> None:
    sizes, machine, batch, rounds, ways, published = PUBLISHED[name]
    model = build("gpt", batch, dropout=0.1, **sizes)
    problem = _problem(machine, model, optimizer="adam", storage="fp16", micro_batches=rounds)
    its = _of_ways(problem, ways, MEGATRON, UNFUSED)
    assert its.iteration_time_ns / 1e9 == pytest.approx(published, rel=0.15)
    assert its.fits
