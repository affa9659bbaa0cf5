"""The simulator fuses the launches that the runtime fuses, which asks the plan."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from deltas import OWN, SMALL, Case, problem_for
from simulated import ArbitraryCosts, random_change, strategy_of

from flexlegion.cost.model import RuntimeCosts
from flexlegion.machine.topology import Device
from flexlegion.plan.passes import PASSES
from flexlegion.plan.plan import Plan
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.strategy import ResolvedStrategy, Strategy


class DispatchAlone(ArbitraryCosts):
    """Of what the runtime takes, nothing but what passes before a task that is not fused."""

    def runtime(self, device: Device) -> RuntimeCosts:
        del device
        return RuntimeCosts(dispatch_ns=1000)


MACHINES = ("p100x2", "p100x4", "shared", "v100x8")


def by_runtime(problem: Problem, strategy: ResolvedStrategy) -> tuple[set[tuple[str, str]], int]:
    """Stages and operators of the launches that are fused with the one before; of how many."""
    plan = Plan(
        strategy, problem.outputs, problem.optimizer_states, problem.clips, problem.granularity
    )
    topology = problem.topology
    memories = [topology.memories.index(device.memory) for device in topology.devices]
    issued = [
        (launch, run)
        for launch, run in zip(plan.launches, plan.fused(memories), strict=True)
        if run >= 0
    ]
    fused = {
        (launch.pass_, launch.operator.name if launch.operator else "")
        for (_, before), (launch, run) in pairwise(issued)
        if before == run
    }
    return fused, len(issued)


def by_simulator(problem: Problem, strategy: ResolvedStrategy) -> set[tuple[str, str]]:
    """The same, by the launches that it does not charge."""

    def name(task: Any) -> str:
        of_all = PASSES[task["pass"]] == "clip"
        return "" if of_all else problem.graph.operators[task["index"]].name

    return {
        (PASSES[task["pass"]], name(task))
        for task in full(problem, strategy).tasks
        if PASSES[task["pass"]] != "load" and task["hop"] < 0 and task["runtime_time"] == 0
    }


def alike(problem: Problem, rng: np.random.Generator) -> ResolvedStrategy:
    """Splits of all sorts, mostly on the same devices, some of which get several tasks."""
    names = problem.devices.names
    order = [names[int(d)] for d in rng.integers(0, len(names), len(names))]
    if rng.random() < 0.5:
        order = list(names)
    changes = random_change(problem, rng, len(problem.graph.operators))
    configs = {
        name: ParallelConfig(config.degrees, tuple(order[: len(config.devices)]))
        if rng.random() < 0.9
        else config
        for name, config in changes.items()
    }
    return problem.checked(Strategy(configs))


@pytest.mark.parametrize("network", [*SMALL, *OWN])
def test_simulator_and_runtime_agree(network: str) -> None:
    rng = np.random.default_rng(0)
    fused = issued = 0
    for machine in MACHINES:
        problem = problem_for(Case(network, machine), costs=DispatchAlone(1))
        strategies = [strategy_of(problem, name) for name in ("single", "data", "model")]
        for strategy in (*strategies, *(alike(problem, rng) for _ in range(6))):
            expected, launches = by_runtime(problem, strategy)
            assert by_simulator(problem, strategy) == expected
            fused += len(expected)
            issued += launches
    assert issued / 10 < fused < issued
