"""The delta algorithm gives the timeline of the full one, bit by bit (FlexFlow, section 5.3).

``scripts/bench/delta_equals_full.py`` does the same at any length.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from deltas import APART, SHALLOW, SMALL, Case, Counts, difference, problem_for, run
from simulated import strategy_of

from flexlegion.sim.simulator import SIMULATED, Simulation
from flexlegion.strategy.configuration import ParallelConfig, cannot_run_again

# (cases, proposals to each): small machines thoroughly, large ones at least once.
PLAN = [
    *((Case(name, "p100x4", 5), 60) for name in SHALLOW),
    *((Case(name, "shared"), 40) for name in SHALLOW),
    *((Case(name, "v100x8", 5), 40) for name in SHALLOW),
    *((Case(name, "k80x16"), 30) for name in SHALLOW),
    *((Case(name, "p100x4"), 30) for name in ("inception_v3", "resnet101")),
    *((Case(name, "shared", 5), 15) for name in ("inception_v3", "resnet101")),
    *((Case(name, "p100x64", 5), 10) for name in ("lenet", "rnnlm", "nmt", "images")),
    (Case("alexnet", "k80x64"), 10),
    *((Case(name, "p100x4", fused_launches=1), 30) for name in ("nmt", "resnet101", "transformer")),
    *((Case(name, "p100x4", 5, micro_batches=4), 30) for name in APART),
    *((Case(name, "shared", micro_batches=2), 20) for name in APART),
    *((Case(name, "p100x2", shard_bytes=256, shards=True), 60) for name in SHALLOW),
    *((Case(name, "k80x8", 5, shard_bytes=256, again=True), 20) for name in SHALLOW),
]


@pytest.mark.parametrize(
    ("case", "proposals"), PLAN, ids=[f"{c.network}-{c.machine}" for c, _ in PLAN]
)
def test_delta_equals_full(case: Case, proposals: int) -> None:
    counts = run(case, proposals, zlib.crc32(str(case).encode()))
    assert not counts.failures
    assert counts.proposals == proposals


def test_the_proposals_are_of_all_sorts() -> None:
    """Accepted and rejected, within limits and beyond: else the property says little."""
    counts = Counts()
    for seed in range(4):
        counts.add(run(Case("rnnlm", "p100x4"), 50, seed))
    assert not counts.failures
    assert 20 < counts.accepted < 150
    assert 10 < counts.cut_short < counts.limited < 100


@pytest.mark.parametrize("machine", ["p100x2", "p100x4", "p100x16"])
def test_equal_layers_sum_on_devices_of_their_own(machine: str) -> None:
    """Who sums the shards of an output goes by the operator, also where flows are kept for others.

    Each layer takes the configuration that one like it had before.
    """
    case = Case("rnnlm", machine, shard_bytes=256)
    problem = problem_for(case)
    names = problem.devices.names
    simulation = Simulation(problem, strategy_of(problem, "single"))
    alike = [op for op in problem.graph.operators if op.name.startswith("project.")]
    assert len({problem.class_of(op) for op in alike}) == 1
    for parts in (2, len(names)):
        for operator in alike:
            cut = min(parts, SMALL["rnnlm"]["hidden"])
            before = simulation.strategy[operator.name].degrees
            config = ParallelConfig((*before[:-1], cut), names[:cut], "shards")
            assert simulation.propose({operator.name: config}, "full") == SIMULATED
            simulation.accept()
            fresh = Simulation(problem, simulation.strategy).timeline()
            assert not (found := difference(simulation.timeline(), fresh)), found


@pytest.mark.parametrize("network", ["nmt", "rnnlm", "transformer"])
def test_what_training_does_not_run_decides_on_registers(network: str) -> None:
    """A softmax that predictions alone compute reads the logits, and so says where they are held.

    Tensors of which every device touches the same part take turns in memory; with another softmax
    the logits, or what it writes, may no longer be one of them.
    """
    problem = problem_for(Case(network, "k80x8", shard_bytes=256, again=True))
    names = problem.devices.names
    start = strategy_of(problem, "data")
    every = [op.name for op in problem.graph.operators if cannot_run_again(op) is None]
    for first in (0, 1):
        again = set(every[first::2])
        held = {
            name: replace(config, again=name in again, sharding="gradients")
            for name, config in start.items()
        }
        simulation = Simulation(problem, start.changed(held))
        for degrees in ((2, 3), (4, 1), (1, 1), (8, 1)):
            one = simulation.strategy["softmax"]
            tasks = degrees[0] * degrees[1]
            cut = (*degrees, *one.degrees[2:])
            its = replace(one, degrees=cut, devices=names[::-1][:tasks], dims=None)
            assert simulation.propose({"softmax": its}, "full") == SIMULATED
            simulation.accept()
            fresh = Simulation(problem, simulation.strategy).timeline()
            assert not (found := difference(simulation.timeline(), fresh)), found
