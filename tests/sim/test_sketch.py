"""Sketches: all but the transfers and the order of tasks stays, and they rank strategies."""

from __future__ import annotations

import numpy as np
import pytest
from deltas import APART, SHALLOW, Case, problem_for
from replicated import replicated_problem
from simulated import strategy_of

from flexlegion.searches.chain import Chain, ChainOptions, prepare_candidates
from flexlegion.searches.start import tie_groups
from flexlegion.sim.simulator import judge

CASES = [
    Case("rnnlm", "p100x16"),
    Case("alexnet", "p100x16"),
    Case("transformer", "k80x8"),
    Case("images", "v100x8"),
    Case("tables", "shared"),
    Case("sequences", "p100x4", micro_batches=4),
]
SPECS = ("data", "model", "expert", *(f"random:{seed}" for seed in range(4)))


@pytest.mark.parametrize("case", CASES)
def test_beside_simulations(case: Case) -> None:
    """Memory is the same, tasks are not more, and times are near each other."""
    problem = problem_for(case)
    for spec in SPECS:
        strategy = strategy_of(problem, spec)
        exact, coarse = judge(problem, strategy), judge(problem, strategy, 0, "bundles")
        assert coarse.missing_bytes == exact.missing_bytes
        assert coarse.tasks <= exact.tasks
        assert (coarse.time_ns is None) == (exact.time_ns is None)
        if coarse.time_ns is not None and exact.time_ns is not None:
            assert 0.75 < coarse.time_ns / exact.time_ns < 1.35, spec


@pytest.mark.parametrize("micro_batches", [2, 8])
def test_a_pipeline_in_rounds(micro_batches: int) -> None:
    """The bubble, and the order of service: each stage is a launch or few at a time."""
    problem = problem_for(Case("transformer", "k80x8", micro_batches=micro_batches))
    strategy = strategy_of(problem, "pipeline")
    exact, coarse = judge(problem, strategy), judge(problem, strategy, 0, "bundles")
    assert exact.time_ns is not None
    assert coarse.time_ns is not None
    assert coarse.time_ns == pytest.approx(exact.time_ns, rel=0.03)


@pytest.mark.parametrize("name", ["pipeline", "interleaved", "data"])
def test_of_many_rounds_some_are_played(name: str) -> None:
    """Then a sketch is off by as much as one in which all are."""
    off = []
    for micro_batches in (20, 60):
        problem = replicated_problem(
            "transformer", "p100x4", 4, micro_batches, np.random.default_rng(0)
        )
        strategy = strategy_of(problem, name)
        exact, coarse = judge(problem, strategy), judge(problem, strategy, 0, "bundles")
        assert exact.time_ns is not None
        assert coarse.time_ns is not None
        off.append(coarse.time_ns - exact.time_ns)
    assert off[1] == pytest.approx(off[0], abs=0.02 * exact.time_ns)
    again = strategy.changed({})
    assert judge(problem, again, coarse.time_ns - 1, "bundles").time_ns is None
    assert judge(problem, again, coarse.time_ns, "bundles").time_ns == coarse.time_ns


@pytest.mark.parametrize("case", CASES[:3])
def test_limits(case: Case) -> None:
    """Who is within a limit is judged within it; nobody else is."""
    problem = problem_for(case)
    for spec in SPECS:
        strategy = strategy_of(problem, spec)
        coarse = judge(problem, strategy, 0, "bundles").time_ns
        if coarse is None:
            continue
        assert judge(problem, strategy, coarse, "bundles").time_ns == coarse
        assert judge(problem, strategy, coarse - 1, "bundles").time_ns is None


@pytest.mark.parametrize(
    "case",
    [
        *(Case(name, "p100x16") for name in SHALLOW),
        *(Case(name, "shared", micro_batches=4) for name in APART),
    ],
    ids=str,
)
def test_changed_is_as_from_nothing(case: Case) -> None:
    """A chain changes its task graph again and again; a fresh one gives the same time."""
    problem = problem_for(case)
    prepare_candidates(problem)
    chain = Chain(problem, strategy_of(problem, "data"), 1, tie_groups(problem), "bundles")
    for tied in (True, False, True):
        chain.run(60, 0.0, ChainOptions(temperature=0.05, tied=tied))
        assert chain.state.best_time == judge(problem, chain.best, 0, "bundles").time_ns
