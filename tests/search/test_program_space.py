"""Searches within a target's space: what has to fit is the exported program."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from exported import network_named, random_allowed, setting_of

import flexlegion as fl
from flexlegion.base.errors import UserError
from flexlegion.exporters.space import target_of
from flexlegion.exporters.targets import TARGETS, Target
from flexlegion.graph.graph import Graph, Operator
from flexlegion.known_strategies import named
from flexlegion.machine.topology import Topology
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.sim.problem import Degrees, Needs, Problem
from flexlegion.sim.simulator import OUT_OF_MEMORY, SIMULATED, Simulation, full
from flexlegion.strategy.configuration import Sharding
from flexlegion.strategy.strategy import ResolvedStrategy

DEVICES = 4
NETWORKS = ("mlp", "gpt", "convnet", "lstms")


@dataclass
class OfSize:
    """The space of a target on devices of another size."""

    target: Target
    bytes: int

    @property
    def name(self) -> str:
        return self.target.name

    def allows(self, operator: Operator, degrees: Degrees) -> bool:
        return self.target.allows(operator, degrees)

    def kept(
        self, operator: Operator, degrees: Degrees, problem: Problem, sharding: Sharding
    ) -> Sequence[tuple[int, Hashable]] | None:
        return self.target.kept(operator, degrees, problem, sharding)

    def room(self, graph: Graph, topology: Topology) -> tuple[int, int]:
        return self.bytes, self.target.room(graph, topology)[1]

    def memory(self, problem: Problem, strategy: ResolvedStrategy) -> Needs | None:
        return self.target.memory(problem, strategy)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("name", NETWORKS)
def test_simulations_refuse_what_exports_say_does_not_fit(
    name: str, to: str, optimizer: str
) -> None:
    """To the byte: it fits into as much as `export` says that it needs, and into no less."""
    network = Network.of(network_named(name).model, TrainingSpec.of(optimizer=optimizer))
    every = setting_of(network, DEVICES).problem
    target = target_of(to, DEVICES)
    for seed in range(4):
        strategy = every.checked(random_allowed(network, DEVICES, to, seed))
        needs = target.memory(every, strategy)
        assert needs is not None
        assert needs == fl.export(network, f"p100x{DEVICES}", strategy, to).memory
        for size, verdict in ((needs.needed, SIMULATED), (needs.needed - 1, OUT_OF_MEMORY)):
            problem = network.problem(every.topology, every.costs, space=OfSize(target, size))
            start = problem.checked(random_allowed(network, DEVICES, to, seed + 100))
            assert Simulation(problem, start).propose(dict(strategy), "full") == verdict


def machine(path: Path, size: int) -> str:
    """Two GPUs with so many bytes of memory each."""
    gpu = {"kind": "gpu", "peak_flops": {"float32": 1e13}, "memory_bandwidth": 1e12}
    document = {
        "schema_version": 1,
        "description": "two small GPUs",
        "nodes": 1,
        "device_types": {"small": gpu | {"memory_bytes": size}},
        "link_types": {"bus": {"bandwidth": 1e10, "latency_ns": 1000}},
        "node": {
            "devices": [{"type": "small", "count": 2}],
            "links": [["gpu:0", "gpu:1", "bus"]],
        },
    }
    path.write_text(json.dumps(document))
    return str(path)


# Where data parallelism's program needs less than is allocated here, and where it needs more.
@pytest.mark.parametrize(("name", "optimizer"), [("gpt", "sgd"), ("convnet", "adam")])
def test_what_fits_as_a_program_is_found(name: str, optimizer: str, tmp_path: Path) -> None:
    network = Network.of(network_named(name).model, TrainingSpec.of(optimizer=optimizer))
    problem = setting_of(network, 2).problem
    data = named("data", problem)
    needs = target_of("dtensor", 2).memory(problem, data)
    assert needs is not None
    allocated = max(full(problem, data).allocated_bytes.values())
    assert needs.needed < allocated
    small = machine(tmp_path / "small.json", needs.needed)
    found = fl.search(network, small, space="dtensor", proposals=100, chains=1, progress=False)
    assert found.fits
    assert found.program_memory is not None
    assert found.program_memory.fits
    assert found.start_times_ns["data"] is not None
    with pytest.raises(UserError, match="by all that training allocates there"):
        fl.search(network, small, proposals=100, chains=1, progress=False)


def test_what_fits_here_alone_is_not_found(tmp_path: Path) -> None:
    """Here optimizer states are kept once, by a program on each device."""
    network = Network.of(network_named("mlp").model, TrainingSpec.of(optimizer="adam"))
    problem = setting_of(network, 2).problem
    data = named("data", problem)
    needs = target_of("dtensor", 2).memory(problem, data)
    assert needs is not None
    allocated = max(full(problem, data).allocated_bytes.values())
    assert allocated < needs.needed
    small = machine(tmp_path / "small.json", allocated)
    options = {"proposals": 100, "chains": 1, "progress": False}
    found = fl.search(network, small, space="dtensor", start=["data", "single", "model"], **options)
    assert found.program_memory is not None
    assert found.program_memory.fits
    assert found.start_times_ns["data"] is None
    tiny = machine(tmp_path / "tiny.json", allocated // 2)
    with pytest.raises(UserError, match="no strategy"):
        fl.search(network, tiny, space="dtensor", **options)
