"""Replicas are played once until the rounds end, and nothing changes by that.

``tests/long/folded.py`` does the same at any length.
"""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from deltas import APART, difference
from replicated import replicated_problem, replicated_strategy

from flexlegion.sim.simulator import SIMULATED, Simulation

CASES = [
    (network, machine, groups)
    for network in APART
    for machine, groups in (("p100x8", 2), ("k80x16", 4), ("v100x16", 8), ("p100x64", 16))
]


@pytest.mark.parametrize(("network", "machine", "groups"), CASES)
def test_folded_equals_unfolded(network: str, machine: str, groups: int) -> None:
    """Task by task; also that both give up at the same limit."""
    rng = np.random.default_rng(zlib.crc32(f"{network} {machine}".encode()))
    shares = []
    for micro_batches in (1, 4, 9):
        problem = replicated_problem(network, machine, groups, micro_batches, rng)
        for _ in range(2):
            strategy = replicated_strategy(problem, groups, rng)
            simulation = Simulation(problem, strategy)
            folded = simulation.timeline()
            assert simulation.propose({}, "unfolded") == SIMULATED
            assert not (found := difference(folded, simulation.timeline())), found
            shares.append(folded.played / len(folded.tasks))
            time_ns = folded.iteration_time_ns
            for algorithm in ("full", "unfolded"):
                assert simulation.propose({}, algorithm, time_ns) == SIMULATED
                assert simulation.propose({}, algorithm, time_ns - 1) != SIMULATED
    if network == "sequences":  # has no tables, whose parts are on all devices
        assert min(shares) < 0.7
