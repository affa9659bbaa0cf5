"""Task graphs of so many tasks that their flows are built by several threads."""

from __future__ import annotations

import numpy as np

from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import named
from flexlegion.networks.network import Network
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.simulator import Simulation
from flexlegion.zoo import build

DEVICES = 256


def test_flows_that_threads_build_are_those_that_are_built_one_by_one() -> None:
    """Task by task: a whole strategy is set side by side, a proposal's flows one by one."""
    machine = load_machine(f"h100x{DEVICES}")
    problem = Network.of(build("resnet101", DEVICES)).problem(machine, AnalyticCosts())
    data = named("data", problem)
    whole = Simulation(problem, data)
    tasks = whole.tasks()
    assert (tasks["hop"] < 0).sum() > 200_000
    replaced = Simulation(problem, named("single", problem))
    replaced.propose(dict(data), "full")
    assert replaced.iteration_time_ns == whole.iteration_time_ns
    assert np.array_equal(replaced.tasks(), tasks)
