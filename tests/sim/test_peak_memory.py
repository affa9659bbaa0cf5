"""The simulator's memory is the plan's, which the runtime's test_memory.py compares with Legion."""

from __future__ import annotations

import pytest
from simulated import SMALL_SHARDS
from zoo_cases import CASES

from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.machine.files import load_machine
from flexlegion.plan import Plan
from flexlegion.problem import Problem
from flexlegion.simulator import full
from flexlegion.strategies import resolve
from flexlegion.transforms.losses import add_loss

STRATEGIES = ("single", "data", "model", "expert", *(f"random:{seed}" for seed in range(1, 6)))
STATES = 2


@pytest.mark.parametrize("name", CASES)
def test_simulated_memory_is_the_plans(name: str) -> None:
    """On devices with memories of their own."""
    case = CASES[name]
    model = case.model()
    graph = add_loss(model.graph, model.graph.operators[-1].output, case.loss)
    logits = graph.operators[-1].inputs[0]  # nothing is executed for prediction only
    topology = load_machine("p100x4")
    problem = Problem(graph, topology, AnalyticCosts(), logits, STATES, granularity=SMALL_SHARDS)
    for strategy in STRATEGIES:
        resolved = resolve(strategy, graph, topology.names)
        plan = Plan(graph, resolved, topology.names, logits, STATES, granularity=SMALL_SHARDS)
        timeline = full(problem, resolved)
        assert sum(timeline.allocated_bytes.values()) >= problem.least_bytes
        for device in topology.devices:
            planned = plan.bytes_on(device.name)
            allocated = timeline.allocated_bytes[device.memory]
            assert allocated == planned, (strategy, device.name)
            assert timeline.peak_memory_bytes[device.memory] <= allocated
