"""Gradients and weights that are sharded beyond the optimizer's states: ZeRO's stages 2 and 3.

What moves, when, and what memory holds; simulated, and compared with the plan.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from deltas import Case, run, topology_of
from simulated import ArbitraryCosts, images, problem_of, sequences, strategy_of, tables
from test_simulator import check
from zoo_cases import CASES

from flexlegion import Model
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.plan.coherence import moved_bytes
from flexlegion.plan.passes import PASSES
from flexlegion.plan.plan import TRAINS, Plan
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.configuration import SHARDING
from flexlegion.strategy.granularity import Granularity
from flexlegion.strategy.strategy import ResolvedStrategy

MSE = "mean_squared_error"
LAYERS, WIDTH = 4, 256
WEIGHTS = LAYERS * WIDTH * WIDTH * 4  # bytes
NEW = ("gather", "gather_spread", "again_gather", "again_spread", "node_reduce", "reduce")


def layers(
    machine: str, rounds: int = 1, batch: int = 32, granularity: Granularity | None = None
) -> Problem:
    """Dense layers of equal size, without biases."""
    model = Model(batch)
    x = model.input((WIDTH,))
    for number in range(LAYERS):
        x = model.dense(x, WIDTH, use_bias=False, name=f"layer{number}")
    granularity = granularity or Granularity(shard_bytes=1)
    topology = load_machine(machine)
    return problem_of(
        model, topology, AnalyticCosts(), MSE, granularity=granularity, micro_batches=rounds
    )


def sharded(strategy: ResolvedStrategy, *what: str) -> ResolvedStrategy:
    """Operators by turns with these of their weights sharded."""
    return strategy.changed(
        {
            name: replace(config, sharding=what[i % len(what)])
            for i, (name, config) in enumerate(strategy.items())
        }
    )


def directly(strategy: ResolvedStrategy) -> ResolvedStrategy:
    """Nothing is summed inside nodes first."""
    return strategy.changed(
        {name: replace(config, hierarchical=False) for name, config in strategy.items()}
    )


def test_order_of_issue() -> None:
    """Right before who reads first, and right behind who contributes last."""
    problem = layers("p100x2")
    plan = Plan(sharded(strategy_of(problem, "data"), "weights"), problem.outputs)
    plan.verify()
    passes = [(its.pass_, its.name) for its in plan.launches if its.pass_ != "load"]
    forward = [
        entry
        for n in range(LAYERS)
        for entry in (("gather", f"layer{n}"), ("forward", f"layer{n}"))
    ]
    backward = [
        entry
        for n in reversed(range(LAYERS))
        for entry in (
            ("again_gather", f"layer{n}"),
            ("backward", f"layer{n}"),
            ("reduce", f"layer{n}"),
        )
    ]
    assert passes[: len(forward)] == forward
    behind = passes[passes.index(("backward", "loss")) + 1 :]
    assert behind[: len(backward)] == backward
    assert [pass_ for pass_, _ in behind[len(backward) :]] == ["update"] * LAYERS


@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize("replicas", [2, 4])
def test_what_moves(replicas: int, rounds: int) -> None:
    """Of |W| bytes on R devices: to each R - 1 times what it lacks.

    Stage 1 moves gradients and weights once an iteration. Stage 2 moves gradients in every
    micro-batch. Stage 3 moves weights twice in every micro-batch, and not at its end.
    """
    problem = layers(f"p100x{replicas}", rounds)
    data = strategy_of(problem, "data")
    once = (replicas - 1) * WEIGHTS
    moved = [full(problem, sharded(data, what)).bytes_moved for what in SHARDING]
    assert moved[0] == 2 * once
    assert moved[1] == (rounds + 1) * once
    assert moved[2] == 3 * rounds * once


@pytest.mark.parametrize(("machine", "nodes"), [("p100x8", 2), ("p100x16", 4)])
def test_between_nodes(machine: str, nodes: int) -> None:
    """With sums inside nodes first, N - 1 times |W| each way pass the network, not R - r times."""
    problem = layers(machine)
    data = sharded(strategy_of(problem, "data"), "weights")
    apart = {device.memory: device.node for device in problem.topology.devices}

    def passes_network(strategy: ResolvedStrategy) -> int:
        line = full(problem, strategy)
        ends = [
            [apart[problem.memories[row[end]]] for end in ("source", "destination")]
            for row in line.tasks
            if row["hop"] == 0
        ]
        sizes = [int(row["bytes"]) for row in line.tasks if row["hop"] == 0]
        return sum(size for (a, b), size in zip(ends, sizes, strict=True) if a != b)

    replicas, each = 4 * nodes, 4
    times = 3  # gathered twice, and reduced
    hierarchical = data.changed(
        {name: replace(config, hierarchical=True) for name, config in data.items()}
    )
    assert passes_network(directly(data)) == times * (replicas - each) * WEIGHTS
    assert passes_network(hierarchical) == times * (nodes - 1) * WEIGHTS


def deep(count: int, machine: str) -> Problem:
    """So many layers that what is at hand is little of all."""
    model = Model(8)
    x = model.input((WIDTH,))
    for number in range(count):
        x = model.dense(x, WIDTH, use_bias=False, name=f"layer{number}")
    return problem_of(
        model,
        load_machine(machine),
        AnalyticCosts(),
        MSE,
        states=2,
        granularity=Granularity(1, 1),
    )


def test_memory_of_deep_networks() -> None:
    """A layer more costs a device, of 4 bytes a weight: stage 1 one weight, a gradient of two
    boxes and R-ths of two states; stage 2 a weight and R-ths of a gradient and two states; stage 3
    R-ths of all four."""
    replicas, layer = 4, WIDTH * WIDTH * 4
    more = []
    for what in SHARDING:
        sizes = []
        for count in (120, 200):
            problem = deep(count, f"p100x{replicas}")
            line = full(problem, sharded(strategy_of(problem, "data"), what))
            sizes.append(max(line.allocated_bytes.values()))
        activation = 8 // replicas * WIDTH * 4
        more.append((sizes[1] - sizes[0]) / 80 - activation)
    assert more[0] == pytest.approx((1 + 2 - 1 / replicas + 2 / replicas) * layer, rel=0.15)
    assert more[1] == pytest.approx((1 + 3 / replicas) * layer, rel=0.02)
    assert more[2] == pytest.approx(4 / replicas * layer, rel=0.02)


def test_what_is_gathered_comes_in_time() -> None:
    """Where a layer takes longer than the next one's weights, nothing waits but the first layer.

    So whatever the layers take, the iteration is longer by what the launches take themselves.
    """
    longer = []
    for batch in (8192, 32768):
        problem = layers("p100x4", batch=batch)
        data = strategy_of(problem, "data")
        times = [full(problem, sharded(data, what)).iteration_time_ns for what in SHARDING]
        assert times[0] < times[1] < times[2]
        longer.append(times[2] - times[0])
    assert longer[0] == longer[1] < 0.1 * times[0]


@pytest.mark.parametrize("machine", ["p100x4", "p100x8", "shared"])
@pytest.mark.parametrize("network", [images, sequences, tables])
def test_agrees_with_the_obvious_simulator(network, machine: str) -> None:
    """Where every tensor has memory of its own, so that nobody waits for that."""
    seen = set()
    for seed, name in enumerate(("data", "random:1", "random:2", "model")):
        model = Model(8)
        network(model)
        kept = Granularity(shard_bytes=1, keep_tensors=True)
        problem = problem_of(
            model, topology_of(machine), ArbitraryCosts(seed), clips=seed == 2, granularity=kept
        )
        strategy = sharded(strategy_of(problem, name), *SHARDING[::-1])
        if seed % 2 == 0:
            strategy = strategy.changed(
                {name: replace(config, hierarchical=True) for name, config in strategy.items()}
            )
        line = full(problem, strategy)
        check(problem, strategy, line)
        seen |= {PASSES[row["pass"]] for row in line.tasks}
    several = {"gather_spread", "node_reduce"} if machine == "p100x8" else set()
    assert seen >= {"gather", "again_gather", "reduce"} | several


CHANGED = [
    Case("transformer", "p100x4", shards=True),
    Case("rnnlm", "p100x16", 5, shards=True, micro_batches=2),
    Case("images", "p100x8", 5, shards=True, fused_launches=1),
    Case("mlp", "shared", shards=True, micro_batches=2),
    Case("sequences", "p100x8", 3, shards=True, again=True, micro_batches=4),
]


@pytest.mark.parametrize("case", CHANGED, ids=str)
def test_delta_is_full(case: Case) -> None:
    """Whatever is proposed."""
    for seed in range(4):
        counts = run(case, 120, seed)
        assert not counts.failures, counts.failures


@pytest.mark.parametrize("name", CASES)
def test_plan_and_simulator_agree(name: str) -> None:
    """In memory, and in what is gathered and reduced."""
    case = CASES[name]
    model = case.model()
    for machine, granularity in (("p100x4", Granularity(1, 1)), ("p100x8", Granularity())):
        topology = load_machine(machine)
        problem = problem_of(
            model, topology, ArbitraryCosts(1, 1000), case.loss, states=2, granularity=granularity
        )
        for spec in ("data+zero2", "fsdp+again", "model+zero3", "random:3+zero3"):
            strategy = strategy_of(problem, spec)
            plan = Plan(strategy, model.outputs, 2, granularity=granularity)
            plan.verify()
            line = full(problem, strategy)
            for device in topology.devices:
                assert line.allocated_bytes[device.memory] == plan.bytes_on(device.name)
            of_launches = line.tasks[line.tasks["hop"] < 0]
            for pass_ in NEW:
                planned = sum(
                    len(its.devices)
                    for its in plan.launches
                    if its.pass_ == pass_ and its.runs & TRAINS
                )
                assert planned == np.sum(of_launches["pass"] == PASSES.index(pass_))


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("network", [images, sequences, tables])
def test_plan_and_simulator_move_the_same(network, rounds: int) -> None:
    """As counted from the plan's rectangles alone."""
    topology = load_machine("p100x4")
    memory_of = {device.name: device.memory for device in topology.devices}
    for spec in ("data+zero2", "fsdp", "model+zero3", "random:1+zero3", "random:2+zero2+again"):
        model = Model(8)
        network(model)
        problem = problem_of(
            model, topology, AnalyticCosts(), granularity=Granularity(1), micro_batches=rounds
        )
        strategy = sharded(strategy_of(problem, spec), *SHARDING)
        plan = Plan(strategy, problem.outputs, 1, granularity=problem.granularity)
        assert moved_bytes(plan, memory_of) == full(problem, strategy).bytes_moved > 0


def test_known_strategies() -> None:
    """`fsdp` is `data+zero3`; a weight that nobody shares is not sharded."""
    problem = layers("p100x4")
    fsdp = strategy_of(problem, "fsdp")
    assert dict(fsdp) == dict(strategy_of(problem, "data+zero3"))
    assert {config.sharding for name, config in fsdp.items() if "layer" in name} == {"weights"}
    alone = strategy_of(problem, "model+zero3")
    assert {config.sharding for config in alone.values()} == {"states"}
