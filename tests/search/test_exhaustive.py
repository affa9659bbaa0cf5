"""Branch and bound against the simulation of every strategy."""

from __future__ import annotations

from itertools import combinations
from math import prod
from typing import get_args

import pytest
from simulated import ArbitraryCosts, problem_of, strategy_of

from flexlegion import Model
from flexlegion.base.errors import UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.model import CostModel
from flexlegion.graph.operator_type import DimKind
from flexlegion.profiling.machines import load_machine
from flexlegion.searches.exhaustive import exhaustive
from flexlegion.searches.mcmc import search
from flexlegion.searches.options import Budget
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import SIMULATED, Simulation, full
from flexlegion.strategy.configuration import ParallelConfig, Sums


def chain(model: Model) -> None:
    """An image, a dense layer."""
    model.dense(model.flatten(model.conv2d(model.input((4, 4, 2)), 3, 3, padding=1)), 4)


def branches(model: Model) -> None:
    """Several readers of a tensor, the same one twice, a concatenation."""
    a = model.dense(model.input((6,)), 4)
    model.concat([model.add([a, a]), a])


def shared(model: Model) -> None:
    """Weights that two operators share."""
    x = model.dense(model.input((5,)), 5, name="first")
    model.dense(x, 5, name="second", share=x)


def sources(model: Model) -> None:
    """A weight that several operators read among their inputs; what is made of weights alone."""
    scale = model.parameter((4,))
    x = model.multiply([model.input((4,)), scale])
    model.add([x, model.elementwise("x0 * x1", [scale, model.constant([1, 2, 3, 4])])])


def brute_force(problem: Problem) -> int:
    """The least iteration time, ns, of all strategies, each simulated."""
    simulation = Simulation(problem, strategy_of(problem, "single"))
    operators = problem.facts.trained
    names = problem.devices.names
    choices = [
        [
            ParallelConfig(degrees, devices, sums)
            for degrees in problem.splits(op)
            for devices in combinations(names, prod(degrees))
            for sums in get_args(Sums)
            if sums == "readers" or prod(degrees[len(op.output.shape) :]) > 1
        ]
        for op in operators
    ]

    def least(first: int) -> int:
        """Over the configurations of the operators from `first` on; of the others as held."""
        best = simulation.iteration_time_ns
        for config in choices[first]:
            verdict = simulation.propose({operators[first].name: config}, "full")
            assert verdict == SIMULATED  # they are small
            if first + 1 < len(operators):
                simulation.accept()
                best = min(best, least(first + 1))
            else:
                best = min(best, simulation.iteration_time_ns)
        return best

    return least(0)


@pytest.mark.parametrize(
    ("network", "machine", "seed"),
    [
        *((network, "p100x2", seed) for network in (chain, branches) for seed in range(6)),
        *((shared, "p100x3", seed) for seed in (0, 1, 2)),  # half a minute each
    ],
)
def test_finds_the_optimum(network, machine: str, seed: int) -> None:
    costs: CostModel = ArbitraryCosts(seed, 10 ** (2 + seed % 4)) if seed else AnalyticCosts()
    model = Model(6)
    network(model)
    problem = problem_of(model, load_machine(machine), costs)
    result = exhaustive(problem, strategy_of(problem, "single"))
    assert result.complete
    assert result.root_bound_ns <= result.iteration_time_ns
    assert result.iteration_time_ns == full(problem, result.strategy).iteration_time_ns
    assert result.iteration_time_ns == brute_force(problem)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("network", [chain, branches])
def test_finds_the_optimum_of_split_reductions(network, seed: int) -> None:
    """Whoever combines the partial values: bounds of both kinds of sums hold."""
    model = Model(2)
    network(model)
    costs = ArbitraryCosts(seed, 10 ** (2 + seed % 4)) if seed else AnalyticCosts()
    problem = problem_of(model, load_machine("p100x2"), costs, dimensions=DimKind)
    result = exhaustive(problem, strategy_of(problem, "single"))
    assert result.complete
    assert result.iteration_time_ns == brute_force(problem)


def test_a_good_incumbent_saves_work_and_changes_nothing() -> None:
    model = Model(6)
    chain(model)
    problem = problem_of(model, load_machine("p100x4"), AnalyticCosts())
    starts = {"data": strategy_of(problem, "single")}
    # One search in two ends a few ns above the optimum, in a local one.
    searches = [search(problem, starts, Budget(None, 2000), seed, chains=1) for seed in range(4)]
    found = min(searches, key=lambda result: result.iteration_time_ns)
    warm = exhaustive(problem, found.strategy)
    cold = exhaustive(problem, strategy_of(problem, "single"))
    assert warm.complete
    assert cold.complete
    assert warm.iteration_time_ns == cold.iteration_time_ns == found.iteration_time_ns
    assert warm.nodes <= cold.nodes


def test_gives_up_in_time_with_what_it_has() -> None:
    model = Model(6)
    chain(model)
    problem = problem_of(model, load_machine("p100x4"), AnalyticCosts())
    start = strategy_of(problem, "single")
    result = exhaustive(problem, start, seconds=1e-9)
    assert not result.complete
    assert result.iteration_time_ns == full(problem, start).iteration_time_ns


def test_says_which_machines_are_too_large() -> None:
    model = Model(16)
    chain(model)
    problem = problem_of(model, load_machine("p100x16"), AnalyticCosts())
    with pytest.raises(UserError, match="at most 8 devices"):
        exhaustive(problem, strategy_of(problem, "single"))
