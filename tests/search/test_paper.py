"""The search of FlexFlow's section 6."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations, product

import pytest
from deltas import Case, problem_for
from simulated import problem_of, strategy_of

from flexlegion import Model
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.graph.operator_type import DimKind
from flexlegion.profiling.machines import load_machine
from flexlegion.searches.chain import Chain, prepare_candidates
from flexlegion.searches.mcmc import search
from flexlegion.searches.options import PAPER, Budget
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.configuration import SPLIT, ParallelConfig, splits
from flexlegion.strategy.strategy import ResolvedStrategy


def small() -> Problem:
    model = Model(64)
    model.dense(model.dense(model.input((256,)), 512), 256, activation="softmax")
    # The paper's dimensions, and a loss of one operator: few enough to simulate all.
    soap = SPLIT - {DimKind.REDUCTION}
    machine = load_machine("p100x2")
    problem = problem_of(
        model, machine, AnalyticCosts(), "categorical_crossentropy", dimensions=soap
    )
    prepare_candidates(problem)
    return problem


def all_strategies(problem: Problem) -> list[ResolvedStrategy]:
    """Every degree of every dimension, on every set of devices."""
    operators = problem.facts.trained
    names = problem.devices.names
    choices = [
        [
            ParallelConfig(degrees, devices)
            for degrees in splits(op, len(names), problem.dimensions)
            for devices in combinations(names, math.prod(degrees))
        ]
        for op in operators
    ]
    rest = strategy_of(problem, "single")
    return [
        rest.changed(dict(zip((op.name for op in operators), configs, strict=True)))
        for configs in product(*choices)
    ]


def test_strategies_are_visited_in_proportion_to_their_probability() -> None:
    """As equation 1 has it: p(S) is proportional to exp(-beta cost(S))."""
    problem = small()
    times = Counter(full(problem, s).iteration_time_ns for s in all_strategies(problem))
    assert len(times) > 10
    scale = min(times)
    options = type(PAPER)(**(vars(PAPER) | {"temperature": 0.2, "scale_ns": scale}))
    weights = {t: n * math.exp(-(t - scale) / (0.2 * scale)) for t, n in times.items()}
    chain = Chain(problem, strategy_of(problem, "data"), 1)
    visits: Counter[int] = Counter()
    steps = 40_000
    for _ in range(steps):
        chain.run(1, 0, options)
        visits[chain.state.current_time] += 1
    assert set(visits) <= set(times)
    for time, weight in weights.items():
        assert visits[time] / steps == pytest.approx(weight / sum(weights.values()), abs=0.015)


def test_a_search_as_in_the_paper() -> None:
    """One chain from each start, reproducible, never slower than a start."""
    case = Case("rnnlm", "p100x4")
    results = []
    for _ in range(2):
        problem = problem_for(case)
        starts = {name: strategy_of(problem, name) for name in ("data", "random:3")}
        results.append(search(problem, starts, Budget(None, 300), 5, 1, PAPER))
    one, two = results
    assert dict(one.strategy) == dict(two.strategy)
    assert one.states == two.states
    assert one.iteration_time_ns <= min(time for time in one.start_times_ns.values() if time)
    assert not one.local_optimum
    assert all(state.too_fine == 0 for of in one.states.values() for state in of)


def test_a_start_is_left_without_improvements() -> None:
    """After half of its budget."""
    problem = small()
    best = min(all_strategies(problem), key=lambda s: full(problem, s).iteration_time_ns)
    result = search(problem, {"best": best}, Budget(None, 6400), 5, 1, PAPER)
    assert 3200 <= result.proposals <= 3200 + 128
    assert dict(result.strategy) == dict(best)
