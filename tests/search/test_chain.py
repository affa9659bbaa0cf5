"""Chains: what speeds them up changes nothing that they do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deltas import Case, problem_for
from simulated import check_local_optimum, strategy_of

from flexlegion.base.errors import NativeError
from flexlegion.searches.chain import Chain, ChainOptions, ChainState, prepare_candidates
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full

CASES = [
    Case("lenet", "p100x4"),
    Case("alexnet", "k80x8"),
    Case("rnnlm", "v100x8"),
    Case("nmt", "k80x4", 5),
    Case("transformer", "shared"),
    Case("images", "p100x8", 5),
    Case("sequences", "shared", 5),
    Case("arithmetic", "p100x4"),
    Case("rnntc", "p100x16"),
]


def deeds(state: ChainState) -> tuple[int, ...]:
    """What a chain did, however it found out that proposals were to be rejected."""
    return (
        state.best_time,
        state.current_time,
        state.proposals,
        state.accepted,
        state.unchanged,
        state.improved,
    )


@pytest.fixture(params=CASES, ids=[f"{case.network}-{case.machine}" for case in CASES])
def problem(request: pytest.FixtureRequest) -> Problem:
    problem = problem_for(request.param)
    prepare_candidates(problem)
    return problem


@pytest.mark.parametrize("tied", [False, True])
def test_early_rejection_and_the_algorithm_change_nothing(problem: Problem, tied: bool) -> None:
    groups = [problem.class_of(op) for op in problem.graph.operators]
    base = ChainOptions(temperature=0.05, tied=tied)
    for seed, name in enumerate(("random:1", "data", "model")):
        start = strategy_of(problem, name)
        chains = {
            options: Chain(problem, start, seed, groups)
            for options in (
                base,
                replace(base, early_rejection=False),
                replace(base, algorithm="full"),
                replace(base, early_rejection=False, algorithm="full"),
            )
        }
        for _ in range(5):  # in slices, as searches run them
            for options, chain in chains.items():
                chain.run(30, 0, options)
            ours, *others = chains.values()
            for other in others:
                assert deeds(other.state) == deeds(ours.state)
                assert dict(other.best) == dict(ours.best)
        state = ours.state
        assert state.proposals == 150
        assert state.accepted > 0 or name != "random:1"


def test_early_rejection_spares_simulations(problem: Problem) -> None:
    """And what it spares is what it counts."""
    chain = Chain(problem, strategy_of(problem, "data"), 1)
    chain.run(200, 0, ChainOptions())
    state = chain.state
    early = state.overloaded + state.overlong + state.stopped
    assert early > 0
    rest = state.unchanged + state.out_of_memory + state.too_fine + state.simulated
    assert early + rest == state.proposals


def test_the_best_strategy_has_the_best_time(problem: Problem) -> None:
    start = strategy_of(problem, "model")
    chain = Chain(problem, start, 3)
    assert chain.state.best_time == full(problem, start).iteration_time_ns
    chain.run(100, 0, ChainOptions(temperature=0.05))
    state = chain.state
    assert state.best_time <= state.current_time
    assert full(problem, chain.best).iteration_time_ns == state.best_time


@pytest.mark.parametrize(
    "case", [Case("lenet", "p100x2"), Case("images", "p100x4", 5), Case("sequences", "shared")]
)
def test_a_descent_ends_where_no_operator_improves(case: Case) -> None:
    problem = problem_for(case)
    prepare_candidates(problem)
    chain = Chain(problem, strategy_of(problem, "data"), 5)
    assert chain.descend(0, False)
    best = chain.state.best_time
    assert full(problem, chain.best).iteration_time_ns == best
    assert chain.descend(0, False)
    assert chain.state.best_time == best
    check_local_optimum(problem, chain.best)


@pytest.mark.parametrize("tied", [False, True])
def test_a_descent_goes_on_where_it_was_stopped(tied: bool) -> None:
    """In as many calls as it takes, by the same way to the same strategy."""
    problem = problem_for(Case("sequences", "p100x4"))
    prepare_candidates(problem)
    groups = [problem.class_of(op) for op in problem.graph.operators]
    whole, parts = (Chain(problem, strategy_of(problem, "data"), 5, groups) for _ in range(2))
    assert whole.descend(0, tied)
    calls = 1
    while not parts.descend(1e-9, tied):
        calls += 1
    assert calls == parts.state.proposals + 1
    assert parts.state == whole.state
    assert parts.best == whole.best


def test_the_parts_of_a_descent_are_all_of_it() -> None:
    """Together, chains that share the operators try what one tries alone."""
    problem = problem_for(Case("images", "p100x4", 5))
    prepare_candidates(problem)
    whole = Chain(problem, strategy_of(problem, "data"), 5)
    assert whole.descend(0)
    tried = []
    for parts in (1, 3):
        chains = [Chain(problem, whole.best, 5) for _ in range(parts)]
        assert all(chain.descend(0, part=i, parts=parts) for i, chain in enumerate(chains))
        assert all(chain.best == whole.best for chain in chains)
        tried.append(sum(chain.state.proposals for chain in chains))
    assert tried[0] == tried[1] > 0
    with pytest.raises(NativeError, match="no such part"):
        chains[0].descend(0, part=3, parts=3)
