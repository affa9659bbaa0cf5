"""Tensors that are needed for a few launches take turns in memory (native/plan/registers.h)."""

from __future__ import annotations

import numpy as np
import pytest
from deltas import SMALL, difference, topology_of
from simulated import ArbitraryCosts, problem_of, strategy_of
from zoo_cases import CASES

from flexlegion import Model
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.plan.plan import Plan
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import SIMULATED, Simulation, full
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.granularity import Granularity
from flexlegion.strategy.strategy import Strategy
from flexlegion.zoo import ZOO, build

KEPT = Granularity(1, 1, keep_tensors=True)
# The fewer launches run as one, the sooner a small tensor's register is free for the next one, so
# that small networks have tensors that share memory.
SHARING = [Granularity(1, 1), Granularity(1, 2)]


def one_of_few(operator: Operator, names: list[str], rng: np.random.Generator) -> ParallelConfig:
    """Of four ways to cut samples: then neighbours often touch the same on every device.

    In one of them a device has two tasks, which touch different samples.
    """
    ones = (1,) * (len(operator.dims) - 1)
    way = int(rng.integers(4))
    if way == 0 or operator.dims[0].kind is DimKind.NONE or operator.looks_up:
        return ParallelConfig((1, *ones), (names[rng.integers(2)],))
    devices = {1: names[:4], 2: names[:2], 3: [names[0], names[0], names[1], names[1]]}[way]
    cut = min(len(devices), operator.space[0])
    return ParallelConfig((cut, *ones), tuple(devices[:cut]))


def drawn(graph: Graph, names: list[str], seed: int) -> Strategy:
    """A strategy of such configurations."""
    rng = np.random.default_rng(seed)
    return Strategy({op.name: one_of_few(op, names, rng) for op in graph.operators})


@pytest.mark.parametrize("name", CASES)
def test_plan_and_simulator_share_alike(name: str) -> None:
    """Each device holds as much by both: never more than if tensors were kept, nor below the peak.

    Under a random strategy, and under those in which neighbours share, or some of them do.
    """
    case = CASES[name]
    model = case.model()
    topology = load_machine("p100x4")
    names = topology.names.names
    held: dict[tuple[str, str], int] = {}
    for granularity in (KEPT, *SHARING):
        problem = problem_of(
            model, topology, AnalyticCosts(), case.loss, states=2, granularity=granularity
        )
        strategies = {
            "data": strategy_of(problem, "data"),
            "random": strategy_of(problem, "random:1"),
            **{f"drawn {n}": problem.checked(drawn(problem.graph, names, n)) for n in range(3)},
        }
        for of, strategy in strategies.items():
            plan = Plan(strategy, model.outputs, 2, granularity=granularity)
            plan.verify()
            timeline = full(problem, strategy)
            for device in topology.devices:
                allocated = timeline.allocated_bytes[device.memory]
                assert allocated == plan.bytes_on(device.name), (granularity, of)
                assert allocated >= timeline.peak_memory_bytes[device.memory]
                contents = timeline.contents_bytes[device.memory]
                assert allocated == sum(contents.values())
                # The first granularity keeps all. Where a device's part of a register begins with
                # a line of the cache, that takes a hundredth more, at most.
                assert allocated <= 1.01 * held.setdefault((of, device.name), allocated)


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_resnet101_fits_where_memory_is_used_again(gpus: int) -> None:
    """With 64 samples on each GPU of 16 GB; without, its tensors take more than a GPU has."""
    topology = load_machine(f"p100x{gpus}")
    model = build("resnet101", 64 * gpus)
    for keeps in (False, True):
        granularity = Granularity(keep_tensors=keeps)
        problem = problem_of(
            model, topology, AnalyticCosts(), ZOO["resnet101"].loss, granularity=granularity
        )
        timeline = full(problem, strategy_of(problem, "data"))
        for device in topology.devices:
            fits = timeline.allocated_bytes[device.memory] <= device.memory_bytes
            assert fits is not keeps


@pytest.mark.parametrize("granularity", SHARING, ids=["apart", "pairs"])
@pytest.mark.parametrize("machine", ["p100x4", "shared"])
@pytest.mark.parametrize("name", ["nmt", "resnet101", "transformer"])
def test_tenants_come_and_go_by_deltas(name: str, machine: str, granularity: Granularity) -> None:
    """Times and bytes after a proposal are those of a simulation from nothing.

    Proposals make tensors share memory that did not before, and part others.
    """
    topology = topology_of(machine)
    names = topology.names.names
    model = build(name, 8, **SMALL[name])

    def problem(cut: Granularity) -> Problem:
        return problem_of(model, topology, ArbitraryCosts(1), ZOO[name].loss, granularity=cut)

    ours, kept = problem(granularity), problem(KEPT)
    rng = np.random.default_rng(0)
    simulation = Simulation(ours, strategy_of(ours, "data"))
    saved = set()
    for _ in range(60):
        operators = rng.choice(len(ours.graph.operators), int(rng.integers(1, 6)), replace=False)
        changed = [ours.graph.operators[i] for i in operators]
        before = simulation.timeline()
        proposal = {op.name: one_of_few(op, names, rng) for op in changed}
        assert simulation.propose(proposal, "delta") == SIMULATED
        if rng.random() < 0.3:
            simulation.reject()
            assert not (found := difference(simulation.timeline(), before)), found
            continue
        simulation.accept()
        timeline = simulation.timeline()
        strategy = simulation.strategy
        assert not (found := difference(timeline, full(ours, strategy))), found
        all_of_them = full(kept, kept.checked(Strategy(dict(strategy)))).allocated_bytes
        kept_bytes = sum(all_of_them.values())
        saved.add(kept_bytes - sum(timeline.allocated_bytes.values()))
        assert min(saved) >= -0.01 * kept_bytes
    assert len(saved) > 10  # more and less is shared from proposal to proposal


def chain(layers: int) -> Model:
    """Equal dense layers; the last one tells classes apart."""
    model = Model(8)
    x = model.input((64,))
    for _ in range(layers):
        x = model.dense(x, 64, activation="relu")
    model.dense(x, 4)
    return model


@pytest.mark.parametrize("granularity", [Granularity(1, 1), Granularity()], ids=["apart", "fused"])
def test_a_longer_chain_needs_no_more_gradients(granularity: Granularity) -> None:
    """Twice the layers: their gradients are dead soon, but each activation is saved."""
    topology = load_machine("p100x1")
    contents = []
    for layers in (40, 80):
        costs = AnalyticCosts()
        problem = problem_of(chain(layers), topology, costs, granularity=granularity)
        timeline = full(problem, strategy_of(problem, "single"))
        contents.append(timeline.contents_bytes["gpu:0"])
    shorter, longer = contents
    assert longer["gradients"] == shorter["gradients"]
    assert longer["activations"] - shorter["activations"] == 40 * 8 * 64 * 4
