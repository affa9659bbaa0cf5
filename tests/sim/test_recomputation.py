"""Operators that are run again for the backward pass: when, for how long, what memory it saves.

Simulated, and compared with what theory says, and with the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from deltas import Case, run
from pipelines import BACKWARD, FORWARD, StageCosts, devices_of_one_memory, pipeline
from simulated import ArbitraryCosts, problem_of, strategy_of
from zoo_cases import CASES

from flexlegion import Model
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.plan.passes import PASSES
from flexlegion.plan.plan import Plan
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import Timeline, full
from flexlegion.strategy.granularity import Granularity
from flexlegion.strategy.recomputation import recomputing
from flexlegion.strategy.strategy import ResolvedStrategy
from flexlegion.transforms.losses import add_losses
from flexlegion.zoo import build

MSE = "mean_squared_error"


def chain(layers: int, devices: int = 1) -> Problem:
    """Layers of equal size and time, on devices of one memory."""
    model = Model(8)
    x = model.input((64,))
    for number in range(layers):
        x = model.dense(x, 64, use_bias=False, name=f"layer{number}")
    graph = add_losses(model.graph, model.outputs, MSE)
    costs = StageCosts({f"layer{number}": FORWARD for number in range(layers)})
    topology = devices_of_one_memory(devices)
    # Memory is used again as soon as it can be.
    return Problem(graph, topology, costs, model.outputs, granularity=Granularity(1, 1))


def running_again(
    problem: Problem, names: Sequence[str], strategy: str = "single"
) -> ResolvedStrategy:
    """A known strategy, with those operators run again."""
    resolved = strategy_of(problem, strategy)
    return resolved.changed({name: replace(resolved[name], again=True) for name in names})


def tasks(line: Timeline) -> list[tuple[str, str, int, int]]:
    """(pass, operator, start, end), in the order of time."""
    graph = line.problem.graph
    rows = [row for row in line.tasks if row["hop"] < 0 and PASSES[row["pass"]] != "load"]
    found = [
        (
            PASSES[row["pass"]],
            graph.operators[row["index"]].name,
            int(row["start_time"]),
            int(row["end_time"]),
        )
        for row in rows
    ]
    return sorted(found, key=lambda task: task[2])


def test_order_of_issue() -> None:
    """A segment is computed again, from its first operator on, when the backward pass needs it."""
    problem = chain(7)
    again = ["layer0", "layer1", "layer3", "layer4"]
    plan = Plan(running_again(problem, again), problem.outputs)
    plan.verify()
    passes = [(launch.pass_, launch.name) for launch in plan.launches]
    backward = [name for pass_, name in passes if pass_ in ("again", "backward")]
    # A layer's backward pass needs its input. layer5 reads layer4, and layer2 layer1.
    assert backward == [
        "loss",
        "layer6",
        *("layer3", "layer4", "layer5", "layer4", "layer3"),
        *("layer0", "layer1", "layer2", "layer1", "layer0"),
    ]
    assert [name for pass_, name in passes if pass_ == "again"] == [
        *("layer3", "layer4"),
        *("layer0", "layer1"),
    ]


def test_nothing_is_run_again_that_nobody_needs() -> None:
    """The last layer's output is read by the loss alone, which keeps no more of it."""
    model = Model(8)
    x = model.input((4,))
    y = model.add([model.dense(x, 4, name="a"), model.dense(x, 4, name="b")], name="sum")
    y = model.dense(y, 4, name="last")
    problem = problem_of(model, load_machine("p100x1"), AnalyticCosts(), MSE)
    plan = Plan(running_again(problem, ["a", "b"]), problem.outputs)
    assert not [launch for launch in plan.launches if launch.pass_ == "again"]
    # The sum is saved for the last layer, and needs what it sums.
    plan = Plan(running_again(problem, ["a", "b", "sum"]), problem.outputs)
    assert [launch.name for launch in plan.launches if launch.pass_ == "again"] == ["a", "b", "sum"]


def test_it_takes_as_long_as_forward() -> None:
    """On one device, the iteration is longer by the forward times of what is run again."""
    problem = chain(6)
    without = full(problem, strategy_of(problem, "single"))
    again = full(problem, running_again(problem, ["layer0", "layer2", "layer3"]))
    assert again.iteration_time_ns - without.iteration_time_ns == 3 * FORWARD


def test_registers_hold_it_back() -> None:
    """An earlier segment is computed again when the later one's backward pass has left.

    Although its inputs are there since the forward pass, and the device could have run it.
    """
    problem = chain(13)
    again = [f"layer{n}" for n in range(12) if n % 4 != 3]
    strategy = running_again(problem, again)
    line = full(problem, strategy)
    started = {(pass_, name): start for pass_, name, start, _ in tasks(line)}
    ended = {(pass_, name): end for pass_, name, _, end in tasks(line)}
    for segment in (0, 1):
        for layer in range(3):
            mine, later = 4 * segment + layer, 4 * segment + 4
            assert started["again", f"layer{mine}"] >= min(
                ended["backward", f"layer{later + other}"] for other in range(1, 4)
            )


@pytest.mark.parametrize("rounds", [1, 4, 8])
@pytest.mark.parametrize("stages", [2, 4])
def test_pipelines(stages: int, rounds: int) -> None:
    """Stages of four layers, of which three are run again: never later than theory says.

    (m + p - 1)(F + A + B), where A is what a stage computes again. Less, where a stage computes
    again while it would wait for the ones behind it: not more than the bubble of A.
    """
    buffers = [stages - stage for stage in range(stages)]
    line = pipeline(stages, rounds, buffers, layers=4, again=True)
    again = 3 * FORWARD // 4
    longest = (rounds + stages - 1) * (FORWARD + again + BACKWARD)
    small = 10 * rounds * stages  # losses, loads and updates take 1 ns each
    bubble = (stages - 1) * again
    assert longest - bubble - small <= line.iteration_time_ns <= longest + small
    for stage in range(stages):
        rows = [row for row in line.tasks if row["hop"] < 0 and row["device"] == stage]
        spans = [(int(row["start_time"]), int(row["end_time"])) for row in rows]
        assert all(end <= begin for (_, end), (begin, _) in pairwise(sorted(spans)))


CHANGED = [
    Case("transformer", "p100x4", again=True),
    Case("nmt", "k80x4", 5, again=True),
    Case("images", "p100x8", 5, again=True, fused_launches=1),
    Case("mlp", "shared", again=True, micro_batches=2),
    Case("sequences", "p100x4", 3, again=True, micro_batches=2),
]


@pytest.mark.parametrize("case", CHANGED, ids=str)
def test_delta_is_full(case: Case) -> None:
    """Whatever is proposed."""
    for seed in range(4):
        counts = run(case, 120, seed)
        assert not counts.failures, counts.failures


@pytest.mark.parametrize("name", CASES)
def test_plan_and_simulator_agree(name: str) -> None:
    """In memory, and in what is computed; the peak is never above what is allocated."""
    case = CASES[name]
    model = case.model()
    topology = load_machine("p100x4")
    problem = problem_of(
        model, topology, ArbitraryCosts(1, 1000), case.loss, states=2, granularity=Granularity(1, 1)
    )
    for spec in ("data+again", "single+again", "model+again", "random:3+again"):
        strategy = strategy_of(problem, spec)
        plan = Plan(strategy, model.outputs, 2, granularity=Granularity(1, 1))
        plan.verify()
        line = full(problem, strategy)
        for device in topology.devices:
            assert line.allocated_bytes[device.memory] == plan.bytes_on(device.name)
            assert line.peak_memory_bytes[device.memory] <= line.allocated_bytes[device.memory]
        planned = sum(len(its.devices) for its in plan.launches if its.pass_ == "again")
        of_launches = line.tasks[line.tasks["hop"] < 0]
        simulated = np.sum(of_launches["pass"] == PASSES.index("again"))
        assert planned == simulated


@pytest.mark.parametrize(("name", "share"), [("gpt", 0.5), ("bert", 0.5), ("resnet101", 0.5)])
def test_it_saves_memory(name: str, share: float) -> None:
    """The peak is that share of what it was, at most, and what is allocated falls, too."""
    model = build(name, 16)
    problem = problem_of(model, load_machine("p100x1"), AnalyticCosts())
    kept, again = (full(problem, strategy_of(problem, its)) for its in ("data", "data+again"))
    (before,), (after,) = kept.peak_memory_bytes.values(), again.peak_memory_bytes.values()
    assert after <= share * before
    assert sum(again.allocated_bytes.values()) < 0.75 * sum(kept.allocated_bytes.values())
    # Everything once more, at most; but a third of the work is what it takes.
    assert again.iteration_time_ns < 1.36 * kept.iteration_time_ns


def test_square_root() -> None:
    """Of n equal layers, about the square root of n are kept."""
    problem = chain(100)
    strategy = strategy_of(problem, "single+again")
    layers = [f"layer{n}" for n in range(100)]
    kept = [n for n, name in enumerate(layers) if not strategy[name].again]
    last = max(n for n, name in enumerate(layers) if strategy[name].again)
    # Besides the last segment, which the backward pass begins with.
    assert 7 <= len([n for n in kept if n <= last + 1]) <= 13


def test_what_travels_is_kept() -> None:
    """Where a pipeline's stages meet, no device waits for another one's recomputation."""
    problem = chain(40, devices=2)
    names = problem.devices.names
    staged = strategy_of(problem, "single")
    second = {op.name for op in problem.graph.operators[20:]}
    moved = {name: replace(staged[name], devices=(names[1],)) for name in second}
    staged = staged.changed(moved)
    strategy = staged.changed(recomputing(staged, problem.graph))
    again = 0
    for op in problem.graph.operators:
        for before in (tensor.producer for tensor in op.inputs):
            if before is not None and strategy[before.name].again:
                again += 1
                assert strategy[before.name].devices == strategy[op.name].devices
    assert again > 0
