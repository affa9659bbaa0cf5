"""The delta algorithm against the full one: random proposals to many networks on many machines."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from blocks import BLOCKS
from networks import NETWORKS
from simulated import (
    ArbitraryCosts,
    images,
    problem_of,
    random_sums,
    sequences,
    strategy_of,
    tables,
)

from flexlegion import Model
from flexlegion.cost.model import CostModel
from flexlegion.graph.operator_type import DimKind
from flexlegion.machine.topology import Topology
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import OUT_OF_MEMORY, SIMULATED, Simulation, Timeline
from flexlegion.strategy.configuration import (
    SHARDING,
    ParallelConfig,
    cannot_run_again,
    random_config,
    splits,
)
from flexlegion.strategy.granularity import Granularity
from flexlegion.strategy.strategy import ResolvedStrategy
from flexlegion.zoo import build

SMALL: Mapping[str, dict[str, Any]] = {
    "alexnet": {"input_shape": (63, 63, 3), "classes": 10},
    "inception_v3": {"input_shape": (75, 75, 3), "classes": 10, "depth_multiplier": 0.125},
    "lenet": {},
    "mlp": {},
    "nmt": {"steps": 3, "hidden": 8, "embedding": 8, "vocabulary": 12},
    "resnet101": {"input_shape": (32, 32, 3), "classes": 10, "blocks": (2, 2, 2, 2), "width": 8},
    "rnnlm": {"steps": 3, "hidden": 8, "vocabulary": 12},
    "rnntc": {"steps": 3, "hidden": 8, "embedding": 6, "vocabulary": 12},
    "transformer": {"steps": 4, "layers": 2, "hidden": 8, "heads": 2, "vocabulary": 12},
}
OWN = {
    "images": images,
    "sequences": sequences,
    "tables": tables,
    "grouped": NETWORKS["grouped"].build,
    **{name: block.build for name, block in BLOCKS.items()},
    **{
        name: NETWORKS[name].build
        for name in ("several", "arithmetic", "reductions", "frozen", "enlarged")
    },
}
# Task graphs of the others are ten times as large.
SHALLOW = [name for name in (*SMALL, *OWN) if name not in ("inception_v3", "resnet101")]
# Networks that compute each sample by itself, so that there can be micro-batches of them.
APART = ("mlp", "alexnet", "nmt", "rnnlm", "transformer", "images", "sequences", "tables")
LOSSES = {"several": NETWORKS["several"].loss}  # of others, cross-entropy

# CPUs of a socket share its memory.
SHARED_MEMORY = {
    "schema_version": 1,
    "description": "two nodes of two sockets of two cores",
    "nodes": 2,
    "device_types": {
        "core": {
            "kind": "cpu",
            "memory_bytes": 10**12,
            "peak_flops": {"float32": 1e11},
            "memory_bandwidth": 1e10,
            "source": "invented",
        }
    },
    "link_types": {
        "bus": {"bandwidth": 4e9, "latency_ns": 10, "shared": True, "source": "invented"},
        "wire": {"bandwidth": 1e9, "latency_ns": 1000, "source": "invented"},
    },
    "node": {
        "devices": [
            {"type": "core", "count": 2, "memory": "socket0"},
            {"type": "core", "count": 2, "memory": "socket1"},
        ],
        "switches": ["host"],
        "links": [["socket0", "host", "bus"], ["socket1", "host", "bus"]],
    },
    "network": {"switches": ["net"], "links": [["host", "net", "wire"]]},
}


@dataclass(frozen=True)
class Case:
    """A network on a machine.

    Parameters
    ----------
    network, machine
        Names.
    largest
        Task times are below this, in ns: few different ones make many ties.
    shard_bytes
        Weights' shards are not smaller.
    fused_launches
        So many launches at most run as one: the fewer, the sooner tensors take turns in memory.
    micro_batches
        Proposals then say at how many of them an operator can be, too.
    again
        Whether every other operator is run again for the backward pass.
    shards
        Whether gradients of every other operator's weights are sharded, or the weights as well.
    """

    network: str
    machine: str
    largest: int = 20_000
    shard_bytes: int = 1
    fused_launches: int | None = None
    micro_batches: int = 1
    again: bool = False
    shards: bool = False


def topology_of(machine: str) -> Topology:
    """A shipped machine, or ``shared``."""
    if machine != "shared":
        return load_machine(machine)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shared.json"
        path.write_text(json.dumps(SHARED_MEMORY))
        return load_machine(path)


def problem_for(case: Case, seed: int = 0, costs: CostModel | None = None) -> Problem:
    """Its problem; batches are small, so that other dimensions than samples have to be split."""
    topology = topology_of(case.machine)
    batch = max(8, len(topology.names)) * (2 if case.micro_batches > 1 else 1)
    if case.network in OWN:
        model = Model(batch)
        OWN[case.network](model)
    else:
        model = build(case.network, batch, **SMALL[case.network])
    return problem_of(
        model,
        topology,
        costs or ArbitraryCosts(seed, case.largest),
        LOSSES.get(case.network),
        clips=case.machine == "shared",
        granularity=Granularity(case.shard_bytes, case.fused_launches),
        micro_batches=case.micro_batches,
    )


@dataclass
class Counts:
    """What a run came to."""

    proposals: int = 0
    tasks: int = 0  # over all proposals
    accepted: int = 0
    limited: int = 0
    cut_short: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Sums up."""
        self.proposals += other.proposals
        self.tasks += other.tasks
        self.accepted += other.accepted
        self.limited += other.limited
        self.cut_short += other.cut_short
        self.failures += other.failures


def difference(ours: Timeline, theirs: Timeline) -> str:
    """Where two timelines differ first; nothing, if they do not."""
    if len(ours.tasks) != len(theirs.tasks):
        return f"{len(ours.tasks)} tasks, not {len(theirs.tasks)}"
    if ours.tasks.tobytes() != theirs.tasks.tobytes():
        row = int(np.flatnonzero(ours.tasks != theirs.tasks)[0])
        return f"task {row}: {ours.tasks[row]}, not {theirs.tasks[row]}"
    for name in (
        "iteration_time_ns",
        "bytes_moved",
        "computation_time_ns",
        "peak_memory_bytes",
        "allocated_bytes",
        "load_ns",
    ):
        if getattr(ours, name) != getattr(theirs, name):
            return f"{name}: {getattr(ours, name)}, not {getattr(theirs, name)}"
    return ""


def proposal(
    problem: Problem, held: ResolvedStrategy, rng: np.random.Generator
) -> dict[str, ParallelConfig]:
    """For one operator or several any degrees on any devices, one of them maybe several times.

    With micro-batches, any number of them can be under way at it. What is run again, or sharded,
    stays so.
    """
    changes = {
        name: config.in_order_of(held[name]) for name, config in _divided(problem, rng).items()
    }
    if (rounds := problem.graph.micro_batches) == 1:
        return changes
    return {
        name: replace(config, buffers=int(rng.integers(1, rounds + 1)))
        for name, config in changes.items()
    }


def _divided(problem: Problem, rng: np.random.Generator) -> dict[str, ParallelConfig]:
    operators = problem.graph.operators
    names = problem.devices.names
    count = min(len(operators), 1 if rng.random() < 0.7 else int(rng.integers(2, 6)))
    changes = {}
    for index in rng.choice(len(operators), count, replace=False):
        operator = operators[index]
        if rng.random() < 0.1:  # degrees that leave the devices with unequal shares
            changes[operator.name] = random_config(
                operator, names, rng, len(names) + 2, reductions=True, parts=True
            )
            continue
        choices = splits(operator, len(names), DimKind)
        degrees = choices[rng.integers(len(choices))]
        tasks = int(np.prod(degrees))
        devices = rng.choice(len(names), tasks, replace=bool(rng.random() < 0.5))
        changes[operator.name] = ParallelConfig(
            degrees, tuple(names[d] for d in devices), random_sums(rng)
        )
    return changes


class Pair:
    """Two simulations of one strategy, which changes by the delta and by the full algorithm.

    Parameters
    ----------
    problem
        What is simulated.
    start
        The strategy at first.
    rng
        Source of proposals, and of what is accepted.
    """

    def __init__(self, problem: Problem, start: ResolvedStrategy, rng: np.random.Generator) -> None:
        self.problem = problem
        self.rng = rng
        self.delta = Simulation(problem, start)
        self.full = Simulation(problem, start)
        self.held = self.full.timeline()
        self.counts = Counts()

    def step(self) -> None:
        """One proposal; raises AssertionError if the two disagree."""
        change = proposal(self.problem, self.delta.strategy, self.rng)
        limit = 0
        if self.rng.random() < 0.3:
            limit = max(1, int(self.held.iteration_time_ns * self.rng.uniform(0.6, 1.2)))
        cut_short = limit > 0 and self.cut_short(change, limit)
        verdict = self.delta.propose(change, "delta")
        assert verdict == self.full.propose(change, "full")
        self.counts.proposals += 1
        if verdict == OUT_OF_MEMORY:
            self.delta.reject()
            self.full.reject()
            return
        assert verdict == SIMULATED
        ours, theirs = self.delta.timeline(), self.full.timeline()
        assert not (found := difference(ours, theirs)), found
        self.counts.tasks += len(ours.tasks)
        if limit:
            self.counts.limited += 1
            self.counts.cut_short += cut_short
            # A bound never turns down what is within the limit, be it as narrow as can be.
            assert not (cut_short and ours.iteration_time_ns <= limit), "turned down too early"
            assert not self.cut_short(change, ours.iteration_time_ns), "turned down at the limit"
        slower = ours.iteration_time_ns / self.held.iteration_time_ns
        if self.rng.random() < (0.5 if slower <= 1.02 else 0.05):
            self.counts.accepted += 1
            self.delta.accept()
            self.full.accept()
            self.held = theirs
            return
        self.delta.reject()
        self.full.reject()
        if self.rng.random() < 0.1:
            assert not (found := difference(self.delta.timeline(), self.held)), found

    def cut_short(self, change: dict[str, ParallelConfig], limit: int) -> bool:
        """Whether a proposal is given up at a limit; leaves it open."""
        algorithm = "delta" if self.rng.random() < 0.5 else "full"
        return self.delta.propose(change, algorithm, limit) not in (SIMULATED, OUT_OF_MEMORY)

    def finish(self) -> None:
        """What has accumulated is what a simulation from nothing makes of the last strategy."""
        strategy = self.delta.strategy
        assert dict(strategy) == dict(self.full.strategy)
        fresh = Simulation(self.problem, strategy).timeline()
        for ours in (self.delta.timeline(), self.full.timeline()):
            assert not (found := difference(ours, fresh)), found


def run(case: Case, proposals: int, seed: int) -> Counts:
    """Make so many proposals; what went wrong is among the counts."""
    rng = np.random.default_rng(seed)
    problem = problem_for(case, seed)
    start = ("data", "model", "single", f"random:{seed % 1000}")[int(rng.integers(4))]
    strategy = strategy_of(problem, start)
    if case.again:
        every = [op.name for op in problem.graph.operators if cannot_run_again(op) is None]
        again = {name: replace(strategy[name], again=True) for name in every[seed % 2 :: 2]}
        strategy = strategy.changed(again)
    if case.shards:
        drawn = rng.integers(4, size=len(problem.graph.operators))
        strategy = strategy.changed(
            {
                op.name: replace(strategy[op.name], sharding=SHARDING[number])
                for op, number in zip(problem.graph.operators, drawn, strict=True)
                if number < len(SHARDING)
            }
        )
    pair = Pair(problem, strategy, rng)
    try:
        for i in range(proposals):
            pair.step()
            if i % 100 == 99:
                pair.finish()
        pair.finish()
    except AssertionError as e:
        pair.counts.failures.append(f"{case}, seed {seed}, proposal {pair.counts.proposals}: {e}")
    return pair.counts
