"""The bound that every search tells: no strategy beats it, nor the optimum of small problems."""

from __future__ import annotations

import random

import numpy as np
import pytest
from deltas import APART, SHALLOW, Case, problem_for
from simulated import ArbitraryCosts, problem_of, strategy_of
from small_models import small_model

import flexlegion as fl
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.profiling.machines import load_machine
from flexlegion.searches.exhaustive import exhaustive
from flexlegion.searches.least_time import least_time
from flexlegion.searches.options import SearchOptions
from flexlegion.searches.proof import can_be_proved
from flexlegion.sim.simulator import judge

SPECS = ("data", "single", "model", "data+again", "fsdp", *(f"random:{seed}" for seed in range(6)))
CASES = [
    *(Case(name, machine) for name in SHALLOW for machine in ("p100x1", "p100x4", "k80x16")),
    *(Case(name, "shared", micro_batches=4) for name in APART),
]


@pytest.mark.parametrize("case", CASES)
def test_no_strategy_is_faster(case: Case) -> None:
    """Whatever tasks take: times that have nothing to do with the tasks' sizes."""
    problem = problem_for(case)
    least = least_time(problem)
    assert 0 <= max(least.chain_ns, least.work_ns) <= least.time_ns
    for spec in SPECS:
        time_ns = judge(problem, strategy_of(problem, spec)).time_ns
        assert time_ns is None or time_ns >= least.time_ns, spec


@pytest.mark.parametrize("arbitrary", [False, True])
def test_never_above_the_optimum(arbitrary: bool) -> None:
    """Of 200 small problems, each solved to its end."""
    gaps = []
    for seed in range(100):
        rng = random.Random(seed)
        # With times that have nothing to do with sizes, bounds prune little.
        costs = ArbitraryCosts(seed, rng.choice([5, 20_000])) if arbitrary else AnalyticCosts()
        machine = load_machine(f"p100x{2 if arbitrary else rng.choice([2, 3])}")
        problem = problem_of(small_model(rng, (4, 8, 16), (6, 12), 3), machine, costs)
        best = exhaustive(problem, strategy_of(problem, "data"))
        least = least_time(problem).time_ns
        assert least <= best.iteration_time_ns, seed
        gaps.append(best.iteration_time_ns / max(1, least) - 1)
    assert np.median(gaps) < (1.25 if arbitrary else 0.25)  # else it says little


def test_what_a_search_tells() -> None:
    found = fl.search("alexnet", "p100x4", proposals=50, seed=1, progress=False)
    assert found.least_time_ns <= found.iteration_time_ns
    assert found.gap == found.iteration_time_ns / found.least_time_ns - 1
    assert not found.optimum
    assert f"found is within {found.gap:.0%} of the best" in str(found)
    assert found.strategy.found["least_time_ns"] == found.least_time_ns
    proved = fl.search("mlp", "p100x2", "10s", progress=False)
    assert proved.optimum
    assert (proved.gap, proved.least_time_ns) == (0, proved.iteration_time_ns)
    assert "it was proved that none of the search space is faster" in str(proved)


def test_what_is_not_proved() -> None:
    """Of several nodes, as sums inside them are not bounded; and what is large, or in rounds."""
    for case, can in (
        (Case("mlp", "p100x4"), True),
        (Case("mlp", "shared"), False),
        (Case("mlp", "p100x4", micro_batches=2), False),
        (Case("mlp", "p100x8"), False),
        (Case("nmt", "p100x4"), False),
    ):
        problem = problem_for(case)
        assert can_be_proved(problem, strategy_of(problem, "data"), SearchOptions()) == can, case
