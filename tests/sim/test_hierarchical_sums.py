"""Weights' gradients that are summed inside nodes first: what moves, and when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated import ArbitraryCosts, finely_cut, images, random_change, sequences, tables
from test_simulator import check

from flexlegion import Model
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import resolve
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.plan.passes import PASSES
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import FLOWS, Simulation, Timeline, full
from flexlegion.strategy.strategy import ResolvedStrategy, Strategy
from flexlegion.zoo import build

MLP = {"input_shape": (512,), "classes": 512, "hidden": (512,)}
WEIGHTS = 2 * 4 * 513 * 512


def everywhere(strategy: ResolvedStrategy, hierarchical: bool = True) -> ResolvedStrategy:
    """The same for every operator."""
    return strategy.changed(
        {op: replace(config, hierarchical=hierarchical) for op, config in strategy.items()}
    )


def between_nodes(timeline: Timeline) -> dict[tuple[int, int], int]:
    """Bytes of weights and their gradients that each node sends to each other one."""
    problem = timeline.problem
    nodes = {device.memory: device.node for device in problem.topology.devices}
    moved: dict[tuple[int, int], int] = {}
    for row in timeline.tasks:
        if row["hop"] != 0 or FLOWS[row["flow"]] != "weights":
            continue
        way = tuple(nodes[problem.memories[row[end]]] for end in ("source", "destination"))
        moved[way] = moved.get(way, 0) + int(row["bytes"])
    return {(a, b): size for (a, b), size in moved.items() if a != b}


@pytest.mark.parametrize(("machine", "nodes"), [("p100x8", 2), ("p100x16", 4)])
def test_a_weight_passes_the_network_once_a_node(machine: str, nodes: int) -> None:
    """(N - 1) |W| in each direction, in equal shares, where (R - r) |W| moved before."""
    network = Network.of(build("mlp", 32, **MLP), TrainingSpec())
    problem = network.problem(load_machine(machine), AnalyticCosts())
    data = resolve("data", problem.graph, problem.devices)
    direct = between_nodes(full(problem, everywhere(data, False)))
    hierarchical = between_nodes(full(problem, everywhere(data)))
    replicas, each = 4 * nodes, 4
    assert sum(direct.values()) == 2 * (replicas - each) * WEIGHTS
    assert sum(hierarchical.values()) == 2 * (nodes - 1) * WEIGHTS
    # Matrices are cut evenly; of biases each is updated in one node.
    assert max(hierarchical.values()) < 1.2 * min(hierarchical.values())


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("network", [images, sequences, tables])
def test_agrees_with_the_obvious_simulator(network, clips: bool) -> None:
    topology = load_machine("p100x8")
    seen = set()
    for seed, name in enumerate(("data", "random:1", "random:2")):
        model = Model(8)
        network(model)
        problem = finely_cut(model, topology, ArbitraryCosts(seed), clips=clips)
        strategy = everywhere(resolve(name, problem.graph, problem.devices))
        timeline = full(problem, strategy)
        check(problem, strategy, timeline)
        seen |= {PASSES[row["pass"]] for row in timeline.tasks}
    assert seen >= {"node_sum", "spread"}


def test_delta_is_full() -> None:
    """Proposals that change who sums first, among others."""
    model = Model(8)
    images(model)
    problem = finely_cut(model, load_machine("p100x8"), ArbitraryCosts(3))
    simulation = Simulation(problem, resolve("data", problem.graph, problem.devices))
    rng = np.random.default_rng(0)
    summed = 0
    for i in range(60):
        simulation.propose(random_change(problem, rng, 1 + i % 3))
        simulation.accept()
        strategy = simulation.strategy
        assert (simulation.timeline().tasks == full(problem, strategy).tasks).all()
        summed += any(config.hierarchical for config in strategy.values())
    assert summed > 20


def test_known_strategies_sum_inside_nodes() -> None:
    """Where a weight is large enough to be cut, on several nodes of several devices each."""
    network = Network.of(build("alexnet", 64), TrainingSpec())
    for machine, several in (("p100x4", False), ("p100x8", True)):
        problem = network.problem(load_machine(machine), AnalyticCosts())
        for name in ("data", "one-weird-trick"):
            strategy = resolve(name, problem.graph, problem.devices)
            chosen = {op for op, config in strategy.items() if config.hierarchical}
            assert chosen == ({op.name for op in weighty(problem)} if several else set())


def weighty(problem: Problem) -> list:
    return [op for op in problem.graph.operators if op.trained_weights]


def test_a_file_keeps_it(tmp_path) -> None:
    network = Network.of(build("mlp", 32, **MLP), TrainingSpec())
    problem = network.problem(load_machine("p100x8"), AnalyticCosts())
    strategy = everywhere(resolve("data", problem.graph, problem.devices))
    strategy.save(tmp_path / "s.json")
    again = Strategy.load(tmp_path / "s.json")
    assert all(again[op].hierarchical for op in strategy)
