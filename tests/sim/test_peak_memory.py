"""The simulator's memory is the plan's, which the runtime's test_memory.py compares with Legion."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated import SMALL_SHARDS, random_sums
from zoo_cases import CASES

from flexlegion import Model
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import resolve
from flexlegion.plan.plan import Plan
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import SIMULATED, Simulation, full
from flexlegion.strategy.configuration import random_config
from flexlegion.strategy.strategy import Strategy
from flexlegion.transforms.losses import add_loss, add_losses

STRATEGIES = ("single", "data", "model", "expert", *(f"random:{seed}" for seed in range(1, 6)))
STATES = 2


@pytest.mark.parametrize("name", CASES)
def test_simulated_memory_is_the_plans(name: str) -> None:
    """On devices with memories of their own."""
    case = CASES[name]
    model = case.model()
    graph = add_loss(model.graph, model.graph.operators[-1].output, case.loss)
    output = model.graph.operators[-1].output  # of a softmax, which prediction alone executes
    topology = load_machine("p100x4")
    problem = Problem(graph, topology, AnalyticCosts(), output, STATES, granularity=SMALL_SHARDS)
    for strategy in STRATEGIES:
        resolved = resolve(strategy, graph, topology.names)
        plan = Plan(resolved, output, STATES, granularity=SMALL_SHARDS)
        timeline = full(problem, resolved)
        assert sum(timeline.allocated_bytes.values()) >= problem.least_bytes
        for device in topology.devices:
            planned = plan.bytes_on(device.name)
            allocated = timeline.allocated_bytes[device.memory]
            assert allocated == planned, (strategy, device.name)
            assert timeline.peak_memory_bytes[device.memory] <= allocated


def test_what_prediction_alone_executes_takes_memory() -> None:
    """Inputs, weights and split reductions of its own, and larger parts of what training reads."""
    model = Model(8)
    x, tokens = model.input((12,), name="x"), model.input((4,), "int32", name="tokens")
    hidden = model.dense(x, 16, name="hidden")
    trained = model.dense(hidden, 8, name="trained")
    looked_up = model.embedding(tokens, 6, 12, name="looked_up")
    asked = model.dense(model.dense(hidden, 12, name="first"), 4, name="second")
    mean = model.concat([asked, model.flatten(looked_up)], name="both")
    outputs = [trained, model.softmax(trained), mean]
    graph = add_losses(model.graph, outputs, ["mean_squared_error", None, None])
    topology = load_machine("p100x4")
    problem = Problem(graph, topology, AnalyticCosts(), outputs, STATES, granularity=SMALL_SHARDS)
    assert {op.name for op in problem.facts.trained} == {"hidden", "trained", "loss.trained"}
    rng = np.random.default_rng(0)
    simulation = Simulation(problem, resolve("data", graph, topology.names))
    for _ in range(200):
        drawn = {
            op.name: random_config(op, topology.names.names, rng, 4, reductions=True)
            for op in graph.operators
        }
        configs = {n: replace(c, sums=random_sums(rng)) for n, c in drawn.items()}
        strategy = problem.checked(Strategy(configs))
        plan = Plan(strategy, outputs, STATES, granularity=SMALL_SHARDS)
        assert simulation.propose(dict(strategy), "delta") == SIMULATED
        simulation.accept()
        timeline = simulation.timeline()
        for device in topology.devices:
            assert timeline.allocated_bytes[device.memory] == plan.bytes_on(device.name)
            held = sum(timeline.contents_bytes[device.memory].values())
            assert held == timeline.allocated_bytes[device.memory]
