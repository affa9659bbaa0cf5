"""The bound that every search tells: no strategy beats it, nor the optimum of small problems."""

from __future__ import annotations

import random

import numpy as np
import pytest
from deltas import OWN, SMALL, Case, problem_for
from simulated import ArbitraryCosts, problem_of, strategy_of

import flexlegion as fl
from flexlegion import Model
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.profiling.machines import load_machine
from flexlegion.searches.exhaustive import exhaustive
from flexlegion.searches.least_time import least_time
from flexlegion.sim.simulator import judge

SPECS = ("data", "single", "model", "data+again", "fsdp", *(f"random:{seed}" for seed in range(6)))
DEEP = ("inception_v3", "resnet101")


@pytest.mark.parametrize(
    ("machine", "rounds"), [("p100x1", 1), ("p100x4", 1), ("shared", 4), ("k80x16", 1)]
)
@pytest.mark.parametrize("network", [name for name in (*SMALL, *OWN) if name not in DEEP])
def test_no_strategy_is_faster(network: str, machine: str, rounds: int) -> None:
    """Whatever tasks take: times that have nothing to do with the tasks' sizes."""
    try:
        problem = problem_for(Case(network, machine, micro_batches=rounds))
    except fl.UserError:
        pytest.skip("its samples are mixed")
    least = least_time(problem)
    assert 0 <= max(least.chain_ns, least.work_ns) <= least.time_ns
    for spec in SPECS:
        try:
            strategy = strategy_of(problem, spec)
        except fl.UserError:
            continue
        time_ns = judge(problem, strategy).time_ns
        assert time_ns is None or time_ns >= least.time_ns, spec


def drawn(rng: random.Random) -> Model:
    """A small model: products, sums, joins, parts and activations."""
    model = Model(rng.choice([4, 8, 16]))
    tensors = [model.input((rng.choice([6, 12]),), name="x")]
    for _ in range(rng.randint(1, 3)):
        tensor = rng.choice(tensors[-2:])
        alike = [its for its in tensors if its.shape == tensor.shape and its is not tensor]
        kind = rng.choice(["dense", "dense", "relu", "softmax", "add", "concat"])
        if kind == "add" and alike:
            tensors.append(model.add([tensor, rng.choice(alike)]))
        elif kind == "concat" and alike:
            tensors.append(model.concat([tensor, rng.choice(alike)], 1))
        elif kind == "relu":
            tensors.append(model.relu(tensor))
        elif kind == "softmax":
            tensors.append(model.softmax(tensor))
        else:
            tensors.append(model.dense(tensor, rng.choice([6, 12])))
    model.set_outputs(model.dense(tensors[-1], 4))
    return model


def test_never_above_the_optimum() -> None:
    """Of at least 200 small problems, with tasks' times of two kinds."""
    gaps = []
    for seed in range(230):
        rng = random.Random(seed)
        costs = ArbitraryCosts(seed, rng.choice([5, 20_000])) if seed % 2 else AnalyticCosts()
        machine = load_machine(f"p100x{rng.choice([2, 2, 3])}")
        problem = problem_of(drawn(rng), machine, costs)
        best = exhaustive(problem, strategy_of(problem, "data"), 1.0)
        if not best.complete:
            continue
        least = least_time(problem).time_ns
        assert least <= best.iteration_time_ns, seed
        gaps.append(best.iteration_time_ns / max(1, least) - 1)
    assert len(gaps) >= 200
    assert np.median(gaps) < 0.5  # else it says little


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
    assert "it was proved that no strategy is faster" in str(proved)
