"""Micro-batches: which graph one of them has, who refuses, and that plan and simulator agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from deltas import OWN, SMALL, topology_of
from simulated import ArbitraryCosts, problem_of, strategy_of
from zoo_cases import CASES

from flexlegion import Model, ParallelConfig, Strategy, UserError
from flexlegion.graph.fingerprint import Fingerprint
from flexlegion.graph.tensor import Tensor
from flexlegion.networks.network import Network
from flexlegion.objective.training import MAX_MICRO_BATCHES, TrainingSpec
from flexlegion.plan.coherence import moved_bytes
from flexlegion.plan.plan import Plan
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.configuration import random_config
from flexlegion.strategy.granularity import Granularity
from flexlegion.strategy.strategy import ResolvedStrategy
from flexlegion.zoo import ZOO, build

Build = Callable[[Model, Tensor], Tensor]

MSE = "mean_squared_error"
# Networks that compute each sample by itself.
APART = ("mlp", "alexnet", "nmt", "rnnlm", "transformer", "images", "sequences", "tables")
CUTS = (Granularity(1, 1), Granularity(1, 1, keep_tensors=True), Granularity())


# The transform


@pytest.mark.parametrize("name", CASES)
def test_activations_are_divided_and_weights_are_shared(name: str) -> None:
    """Whatever has a row a sample has so many fewer; the network's fingerprint is the same."""
    case = CASES[name]
    model = case.model()
    spec = TrainingSpec(case.loss, None, case.optimizer)
    whole = Network.of(model, spec).graph
    # Batch norms, and experts of a capacity: which tokens these take depends on all samples.
    together = {"batch_norm_moments", "capacity"} & {op.kind.type for op in whole.operators}
    if together:
        with pytest.raises(UserError, match=rf"\({together.pop()}\) needs all samples"):
            Network.of(model, replace(spec, micro_batches=2))
        return
    half = Network.of(model, replace(spec, micro_batches=2)).graph
    assert (whole.micro_batches, half.micro_batches) == (1, 2)
    assert Fingerprint.of(half).value == Fingerprint.of(whole).value
    summed = {weight for weight in half.weights if weight.summed}
    assert [its.name for its in half.weights] == [its.name for its in whole.weights]
    assert set(half.weights) - summed == {its for its in whole.weights if its in half.weights}
    divided = 0
    for a, b in zip(whole.tensors, half.tensors, strict=True):
        assert (a.name, a.dtype, a.kind) == (b.name, b.dtype, b.kind)
        if a.shape != b.shape:
            assert a.shape == (2 * b.shape[0], *b.shape[1:])
            divided += 1
    assert divided > len(whole.operators) / 2


def test_what_is_the_same_for_all_samples_stays_whole() -> None:
    """Constants, what is computed of them alone, and tables of positions' angles."""
    model = Model(8)
    x = model.input((6, 4))
    angles = np.linspace(0, 1, 6 * 4, dtype=np.float32).reshape(6, 1, 4)
    cos, sin = (model.constant(f(angles), name=f.__name__) for f in (np.cos, np.sin))
    twice = model.multiply([cos, cos], name="twice")
    q = model.rotary(model.reshape(model.dense(x, 8, name="fc"), (6, 2, 4)), twice, sin, name="q")
    first = model.expand(model.parameter((6, 8), name="first"), (6, 8), name="repeated")
    model.dense(model.flatten(model.add([model.reshape(q, (6, 8)), first])), 2)
    network = Network.of(model, TrainingSpec(MSE, micro_batches=4))
    shapes = {op.name: op.output.shape for op in network.graph.operators}
    assert shapes["twice"] == (1, 6, 1, 4)
    assert shapes["fc"] == (2, 6, 8)
    assert shapes["q"] == (2, 6, 2, 4)
    assert shapes["repeated"] == (2, 6, 8)  # as it meets samples


def normalized(model: Model, x: Tensor) -> Tensor:
    return model.batch_norm(x, name="norm")


def penalized(model: Model, x: Tensor) -> Tensor:
    """A loss of weights alone, which does not grow with the samples."""
    weight = model.parameter((3,), name="scale")
    model.loss = model.multiply([weight, weight], name="penalty")
    return model.multiply([x, weight])


def dropped(model: Model, x: Tensor) -> Tensor:
    """One mask of weights for all samples."""
    return model.multiply([x, model.dropout(model.parameter((3,), name="scale"), 0.5, name="drop")])


@pytest.mark.parametrize(
    ("build_it", "text"),
    [
        (dropped, "operator 'drop' (dropout) draws the same for all samples of a batch"),
        (normalized, "operator 'norm.moments' (batch_norm_moments) needs all samples of a batch"),
        (penalized, "operator 'loss' (mean_loss) adds to the loss once a batch, so it cannot"),
    ],
)
def test_who_needs_the_whole_batch_refuses(build_it: Build, text: str) -> None:
    model = Model(8)
    model.set_outputs(build_it(model, model.dense(model.input((4,)), 3)))
    loss = None if model.loss is not None else MSE
    Network.of(model, TrainingSpec(loss))
    with pytest.raises(UserError) as error:
        Network.of(model, TrainingSpec(loss, micro_batches=2))
    assert text in str(error.value)


def test_batches_that_cannot_be_divided() -> None:
    with pytest.raises(UserError, match="a batch of 8 samples cannot be divided into 3 micro-b"):
        Network.of(build("mlp", 8), TrainingSpec(micro_batches=3))
    assert Network.of(build("mlp", 8), TrainingSpec(micro_batches=8)).graph.micro_batches == 8


# Numbers


@pytest.mark.parametrize("number", [0, True, 1.5, "2"])
def test_numbers_out_of_range(number: object) -> None:
    with pytest.raises(UserError, match=r"micro.batches"):
        build("mlp", 8).compile(micro_batches=number)  # type: ignore[arg-type]


def test_buffers_in_files(tmp_path: Path) -> None:
    """They are read as they were written; more than there are micro-batches are as many."""
    problem = pairs_of_layers(4)
    registers = {"first": 3, "second": 2, "loss": MAX_MICRO_BATCHES}
    strategy = placed(problem, registers)
    path = tmp_path / "s.json"
    strategy.save(path)
    assert {name: c.buffers for name, c in Strategy.load(path).items()} == registers
    again = problem.checked(Strategy.load(path))
    assert dict(again) == dict(strategy)
    assert '"buffers": 3' in path.read_text()
    clipped = placed(problem, registers | {"loss": 4})
    assert full(problem, again).tasks.tobytes() == full(problem, clipped).tasks.tobytes()
    assert full(problem, again).allocated_bytes == full(problem, clipped).allocated_bytes


# Plan and simulator


def pairs_of_layers(rounds: int) -> Problem:
    """Two layers and a loss on two GPUs."""
    model = Model(8)
    model.dense(model.dense(model.input((16,)), 16, name="first"), 4, name="second")
    topology = topology_of("p100x2")
    return problem_of(model, topology, ArbitraryCosts(0), MSE, micro_batches=rounds)


def placed(problem: Problem, registers: dict[str, int]) -> ResolvedStrategy:
    """Each layer on a GPU of its own."""
    configs = {}
    for op in problem.graph.operators:
        device = "gpu:0" if op.name == "first" else "gpu:1"
        configs[op.name] = ParallelConfig(
            (1,) * len(op.dims), (device,), buffers=registers[op.name]
        )
    return problem.checked(Strategy(configs))


def drawn(problem: Problem, seed: int) -> ResolvedStrategy:
    """Any degrees, devices and numbers of registers."""
    rng = np.random.default_rng(seed)
    most = problem.graph.micro_batches
    configs = {}
    for op in problem.graph.operators:
        config = random_config(op, problem.devices.names, rng, 4, reductions=True)
        configs[op.name] = replace(config, buffers=int(rng.integers(1, most + 1)))
    return problem.checked(Strategy(configs))


@pytest.mark.parametrize("rounds", [2, 4])
@pytest.mark.parametrize("name", APART)
def test_plan_and_simulator_agree(name: str, rounds: int) -> None:
    """Each device holds as much by both, and as much moves between memories."""
    model = Model(8)
    if name in OWN:
        OWN[name](model)
    else:
        model = build(name, 8, **SMALL[name])
    topology = topology_of("p100x4")
    memory_of = {device.name: device.memory for device in topology.devices}
    loss = ZOO[name].loss if name in ZOO else None
    for cut in CUTS:
        costs = ArbitraryCosts(0)
        problem = problem_of(
            model, topology, costs, loss, states=2, granularity=cut, micro_batches=rounds
        )
        for strategy in (strategy_of(problem, "data"), *(drawn(problem, n) for n in range(4))):
            plan = Plan(strategy, problem.outputs, 2, granularity=cut)
            plan.verify()
            timeline = full(problem, strategy)
            for device, memory in memory_of.items():
                assert timeline.allocated_bytes[memory] == plan.bytes_on(device)
                assert timeline.allocated_bytes[memory] >= timeline.peak_memory_bytes[memory]
            assert timeline.bytes_moved == moved_bytes(plan, memory_of)


def test_what_moves_by_hand() -> None:
    """Per micro-batch (2, 16) floats from the first layer to the second, and their gradients."""
    for rounds in (1, 4):
        problem = pairs_of_layers(rounds)
        strategy = placed(problem, dict.fromkeys(("first", "second", "loss"), 1))
        assert full(problem, strategy).bytes_moved == 2 * 8 * 16 * 4


@pytest.mark.parametrize(("rows", "summed"), [(4 * 6 - 1, True), (4 * 6, False)])
def test_tables_that_are_looked_up_often_are_summed(rows: int, summed: bool) -> None:
    """Of which a batch looks up more rows than there are, the gradient is like any weight's.

    So what is kept does not grow with the micro-batches; and samples can be split.
    """

    def problem(micro_batches: int, optimizer: str = "adam") -> Problem:
        model = Model(4)
        tokens = model.input((6,), dtype="int32")
        model.dense(model.embedding(tokens, rows, 64, name="embed"), 8)
        spec = TrainingSpec.of(loss=MSE, micro_batches=micro_batches, optimizer=optimizer)
        return Network.of(model, spec).problem(topology_of("p100x2"), ArbitraryCosts(1))

    one, four = problem(1), problem(4)
    (table,) = (weight for weight in four.graph.weights if weight.name == "embed.table")
    assert (table.summed, table.table) == (summed, not summed)
    assert [op.name for op in four.graph.operators if op.looks_up] == ["embed"] * (not summed)
    assert all(weight.table for weight in one.graph.weights if weight.name == "embed.table")
    assert not any(weight.summed for weight in problem(4, "lazy-adam").graph.weights)
    strategy = strategy_of(four, "data")
    assert prod(strategy["embed"].degrees) == strategy["embed"].degrees[0 if summed else 2]
    line = full(four, strategy)
    Plan(strategy, four.outputs, four.optimizer_states).verify()
    looked_up = 6 * 64 * 4  # bytes of a micro-batch's gradient
    gradients = sum(its["gradients"] for its in line.contents_bytes.values())
    assert (gradients >= 4 * looked_up) == (not summed)
