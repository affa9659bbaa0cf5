"""The native simulator against the obvious one, task by task."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from deltas import topology_of
from networks import NETWORKS
from obvious import build, simulate
from simulated import (
    ArbitraryCosts,
    finely_cut,
    images,
    random_change,
    sequences,
    strategy_of,
    tables,
)

from flexlegion import Model
from flexlegion.base.errors import UserError
from flexlegion.cost.model import CostModel
from flexlegion.known_strategies import resolve
from flexlegion.machine.devices import Devices
from flexlegion.plan.passes import PASSES, ROWS, TASK_PASSES
from flexlegion.plan.plan import Plan
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem, thousandths
from flexlegion.sim.simulator import SIMULATED, Simulation, Timeline, full
from flexlegion.strategy.strategy import ResolvedStrategy, Strategy
from flexlegion.zoo import build as build_network


def exe_times(plan: Plan, timeline: Timeline) -> list[list[int]]:
    """The times that the simulator gave the plan's tasks."""
    of = {
        (PASSES[row["pass"]], int(row["index"]), int(row["part"])): int(row["exe_time"])
        for row in timeline.tasks
        if row["hop"] < 0
    }
    clip = [time for (pass_, _, _), time in of.items() if pass_ == "clip"]
    numbers = timeline.problem.operator_numbers
    times = []
    for launch in plan.launches:
        if launch.pass_ == "clip":
            times.append(clip)
            continue
        index = (
            numbers[launch.operator.name]
            if launch.operator
            else plan.tensor_numbers[launch.written.tensor]
        )
        times.append([of.get((launch.pass_, index, k), 1) for k in range(len(launch.devices))])
    return times


def contentions(plan: Plan, costs: CostModel) -> list[int]:
    """Of each launch's tasks, in thousandths."""
    if not isinstance(costs, ArbitraryCosts):
        return [0] * len(plan.launches)
    rows = {row.name: row for row in ROWS}
    return [
        thousandths(
            costs.contention(
                f"{launch.operator.kind} {launch.pass_}"
                if launch.operator and launch.pass_ in TASK_PASSES
                else rows[launch.pass_].priced_as
            )
        )
        if rows[launch.pass_].price != "nothing"
        else 0
        for launch in plan.launches
    ]


def check(problem: Problem, strategy: ResolvedStrategy, timeline: Timeline) -> None:
    """Compare a timeline with the obvious one, made from the plan."""
    plan = Plan(
        strategy, problem.outputs, problem.optimizer_states, problem.clips, problem.granularity
    )
    runtimes = {d.name: problem.costs.runtime(d) for d in problem.topology.devices}
    more = contentions(plan, problem.costs)
    tasks = build(plan, problem.topology, exe_times(plan, timeline), more, runtimes)
    devices = problem.topology.devices
    if len({device.memory for device in devices}) == len(devices):
        for device in devices:
            assert timeline.allocated_bytes[device.memory] == plan.bytes_on(device.name)
    assert timeline.iteration_time_ns == simulate(tasks, problem.topology, runtimes)
    assert len(timeline.tasks) == len(tasks)
    for ours, theirs in zip(timeline.tasks, tasks, strict=True):
        assert timeline.places[ours["device"]] == theirs.device
        assert ours["bytes"] == theirs.bytes
        assert ours["exe_time"] == theirs.exe_time
        took = ours["exe_time"] + ours["contention_time"] + ours["runtime_time"]
        assert not theirs.memory or took == ours["end_time"] - ours["start_time"]
        assert ours["ready_time"] == theirs.ready_time
        assert ours["start_time"] == theirs.start_time
        assert ours["end_time"] == theirs.end_time


@pytest.mark.parametrize("machine", ["p100x4", "p100x8", "k80x8", "v100x8", "shared"])
@pytest.mark.parametrize("network", [images, sequences, tables])
def test_agrees_with_the_obvious_simulator(network, machine: str) -> None:
    topology = topology_of(machine)
    for seed in range(6):
        model = Model(8)
        network(model)
        problem = finely_cut(model, topology, ArbitraryCosts(seed), clips=seed in (0, 2, 4))
        name = ["data", "model", "single"][seed] if seed < 3 else f"random:{seed}"
        strategy = strategy_of(problem, name)
        check(problem, strategy, full(problem, strategy))


SMALL = {
    "rnnlm": {"steps": 2, "hidden": 4, "vocabulary": 6},
    "nmt": {"steps": 2, "hidden": 4, "vocabulary": 6},
    "transformer": {"layers": 1, "hidden": 4, "heads": 2, "steps": 3, "vocabulary": 5},
}


@pytest.mark.parametrize("network", SMALL)
def test_agrees_on_shared_weights_and_several_outputs(network: str) -> None:
    topology = load_machine("k80x4")
    model = build_network(network, 4, **SMALL[network])
    problem = finely_cut(model, topology, ArbitraryCosts(1))
    for name in ("data", "random:1", "random:2"):
        strategy = strategy_of(problem, name)
        check(problem, strategy, full(problem, strategy))


def test_agrees_on_several_losses() -> None:
    topology = load_machine("k80x4")
    network = NETWORKS["several"]
    problem = finely_cut(network.model(), topology, ArbitraryCosts(1), network.loss)
    for name in ("data", "random:1"):
        strategy = strategy_of(problem, name)
        check(problem, strategy, full(problem, strategy))


@pytest.mark.parametrize("network", [images, sequences, tables, NETWORKS["reductions"].build])
def test_agrees_on_partial_values(network) -> None:
    """Of reductions that are split, whoever combines them."""
    topology = load_machine("k80x4")
    partial = summed = 0
    for seed in range(4):
        model = Model(4)
        network(model)
        problem = finely_cut(model, topology, ArbitraryCosts(seed), clips=seed == 3)
        rng = np.random.default_rng(seed)
        changes = random_change(problem, rng, len(problem.graph.operators))
        strategy = problem.checked(Strategy(changes))
        timeline = full(problem, strategy)
        check(problem, strategy, timeline)
        passes = {PASSES[row["pass"]] for row in timeline.tasks}
        summed += "sum" in passes
        partial += any(
            prod(changes[op.name].degrees[len(op.output.shape) :]) > 1
            for op in problem.graph.operators
        )
    assert partial > 1
    assert summed > 0


@pytest.mark.parametrize("clips", [False, True])
def test_agrees_after_proposals(clips: bool) -> None:
    """The graph after splicing is the graph of the changed strategy, not just a consistent one."""
    topology = load_machine("k80x4")
    model = Model(8)
    images(model)
    problem = finely_cut(model, topology, ArbitraryCosts(5), clips=clips)
    simulation = Simulation(problem, strategy_of(problem, "data"))
    rng = np.random.default_rng(0)
    for i in range(12):
        change = random_change(problem, rng, 1 + i % 2)
        assert simulation.propose(change) == SIMULATED
        changed = simulation.strategy.changed(change)
        check(problem, changed, simulation.timeline())
        if i % 3:
            simulation.accept()
        else:
            before = simulation.strategy
            simulation.reject()
            check(problem, before, simulation.timeline())


def test_splitting_a_weight_shrinks_what_is_synchronised() -> None:
    """Data parallelism moves every partial gradient and every updated shard; parameters move none.

    A dense layer (8 -> 6) on two GPUs: 54 weights of 4 bytes. Each GPU sends half of its partial
    gradient, and its updated half: 4 x 108 bytes. Split by channels, the gradients stay where they
    are.
    """
    model = Model(4)
    model.dense(model.input((8,)), 6)
    problem = finely_cut(model, load_machine("p100x2"), ArbitraryCosts(0))
    assert full(problem, strategy_of(problem, "data")).bytes_moved == 4 * 108


def test_a_device_that_the_machine_lacks() -> None:
    model = Model(4)
    sequences(model)
    problem = finely_cut(model, load_machine("p100x4"), ArbitraryCosts(0))
    strategy = resolve("data", problem.graph, Devices.of(cpus=2))
    with pytest.raises(UserError, match="needs device 'cpu:0', but this run has gpu:0 to gpu:3"):
        problem.checked(strategy)


def test_timelines_say_what_priced_their_tasks() -> None:
    model = Model(8)
    images(model)
    problem = finely_cut(model, load_machine("p100x2"), ArbitraryCosts(0))
    rows = list(full(problem, strategy_of(problem, "data")).rows())
    details = [details for _, name, _, _, details in rows if name.startswith("forward")]
    assert details
    assert all(d["priced_by"] == "arbitrary" for d in details)
