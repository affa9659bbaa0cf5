"""The machine `local` with GPUs, described from what Legion and CUDA would tell: no GPU is here."""

from __future__ import annotations

import numpy as np
import pytest
from local_machines import H200, local

from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.efficiency import efficiency_of
from flexlegion.known_strategies import resolve
from flexlegion.machine.topology import Topology
from flexlegion.profiling.gpus import Gpu
from flexlegion.searches.mcmc import search
from flexlegion.searches.options import Budget
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.configuration import random_config
from flexlegion.strategy.strategy import Strategy
from flexlegion.transforms.losses import add_loss
from flexlegion.zoo import build


def way(topology: Topology, source: str, destination: str) -> list[str]:
    hops = topology.route(source, destination)
    return [hops[0].source, *(hop.destination for hop in hops)]


def test_rates_of_a_gpu() -> None:
    """As the data sheet has them, whose clocks for tensor cores are a bit lower."""
    assert H200.peak_flops["float32"] == pytest.approx(67e12, rel=0.01)
    assert H200.peak_flops["tfloat32"] == pytest.approx(495e12, rel=0.1)
    assert H200.peak_flops["bfloat16"] == pytest.approx(989e12, rel=0.1)
    assert H200.memory_bandwidth == pytest.approx(4.8e12, rel=0.05)


def test_gpus_without_tensor_cores_or_clocks() -> None:
    p100 = Gpu("Tesla P100-PCIE-16GB", "cuDNN 9", 6, 0, 56, 1_328_500, 715_000, 4096)
    assert p100.peak_flops == {"float32": 2 * 56 * 64 * 1_328_500_000}
    assert p100.memory_bandwidth == pytest.approx(732e9, rel=0.01)
    assert Gpu("G", "s", 9, 0, 132, 0, 0, 0).peak_flops == {}
    assert Gpu("new", "s", 99, 0, 1, 1, 1, 8).peak_flops["float32"] == 2 * 128 * 1000


def test_efficiency_by_the_drivers_name() -> None:
    device = local(1, 1, 1, ["a"], False).device("gpu:0")
    assert efficiency_of(device).half_outputs == 660_000  # H200's, not the default


def test_one_rank_with_peers() -> None:
    topology = local(1, 2, 2, ["a"], True)
    assert way(topology, "gpu:0", "gpu:1") == ["gpu:0", "gpu:1"]
    assert way(topology, "cpu:1", "gpu:1") == ["node:0/ram", "gpu:1"]
    assert topology.bandwidth("gpu:0", "gpu:1") == 400_000_000_000


def test_gpus_that_are_no_peers() -> None:
    topology = local(1, 1, 3, ["a"], False)
    assert way(topology, "gpu:2", "gpu:0") == ["gpu:2", "cpu:0", "gpu:0"]


def test_ranks_of_a_node() -> None:
    topology = local(2, 1, 2, ["a", "a"], True)
    assert way(topology, "gpu:0", "gpu:3") == ["gpu:0", "gpu:3"]
    assert way(topology, "gpu:0", "cpu:1") == ["gpu:0", "cpu:0", "cpu:1"]


def test_nodes() -> None:
    topology = local(2, 2, 2, ["a", "b"], True)
    assert way(topology, "gpu:3", "gpu:0") == [
        "gpu:3",
        "node:1/ram",
        "network",
        "node:0/ram",
        "gpu:0",
    ]
    assert way(topology, "cpu:0", "gpu:2") == ["node:0/ram", "network", "node:1/ram", "gpu:2"]
    assert topology.device("gpu:2").node == 1


def test_mixed_strategies_are_simulated_and_searched() -> None:
    topology = local(1, 2, 2, ["a"], False)
    model = build("lenet", 32)
    output = model.graph.operators[-1].output
    graph = add_loss(model.graph, output, "sparse_categorical_crossentropy")
    problem = Problem(graph, topology, AnalyticCosts("tfloat32"), output)
    data = resolve("data", graph, topology.names)
    assert data.devices() == {"gpu:0", "gpu:1"}
    rng = np.random.default_rng(1)
    configs = {op.name: random_config(op, topology.names.names, rng, 4) for op in graph.operators}
    mixed = problem.checked(Strategy(configs))
    assert {name.partition(":")[0] for name in mixed.devices()} == {"cpu", "gpu"}
    timeline = full(problem, mixed)
    assert timeline.iteration_time_ns > 0
    assert timeline.bytes_moved > 0
    starts = {"data": data, "random": mixed}
    found = search(problem, starts, Budget(seconds=None, proposals=200), 0)
    assert full(problem, found.strategy).iteration_time_ns <= timeline.iteration_time_ns
