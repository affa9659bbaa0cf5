"""OptCNN's eliminations against brute force, and its costs against the simulator's."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from simulated import ArbitraryCosts, problem_of, strategy_of

from flexlegion import Model, UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.graph.operator_type import DimKind
from flexlegion.known_strategies import named
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.profiling.machines import load_machine
from flexlegion.searches.optcnn import SummedCosts, minimise, optcnn, solve, summed_costs
from flexlegion.sim.simulator import full
from flexlegion.strategy.configuration import SPLIT, ParallelConfig
from flexlegion.strategy.strategy import Strategy
from flexlegion.zoo import build


def brute_force(costs: SummedCosts) -> int:
    """The least total of all choices, ns."""
    return min(costs.total(choice) for choice in product(*(range(len(o)) for o in costs.own)))


def chain(model: Model) -> None:
    x = model.conv2d(model.input((6, 6, 2)), 4, 3)
    model.dense(model.flatten(x), 4)


def block(model: Model) -> None:
    a = model.dense(model.input((6,)), 6)
    model.add([a, model.dense(a, 6)])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("network", [chain, block])
@pytest.mark.parametrize("machine", ["p100x4", "k80x4"])
def test_eliminations_give_the_least_sum(network, machine: str, seed: int) -> None:
    model = Model(8)
    network(model)
    costs = AnalyticCosts() if seed == 0 else ArbitraryCosts(seed, 10 ** (2 + seed))
    problem = problem_of(model, load_machine(machine), costs)
    result = solve(problem)
    assert result.exact
    assert not result.tied
    assert result.summed_cost_ns == brute_force(summed_costs(problem, tied=False))


@pytest.mark.parametrize("variables", [1, 3, 5])
def test_kernels_are_enumerated(variables: int) -> None:
    rng = np.random.default_rng(variables)
    sizes = [2 + v % 2 for v in range(variables)]
    own = [rng.integers(0, 9, n) for n in sizes]
    pairs = {
        (a, b): rng.integers(0, 99, (sizes[a], sizes[b]))
        for a in range(variables)
        for b in range(a + 1, variables)
    }
    candidates = [[(i,) for i in range(n)] for n in sizes]
    costs = SummedCosts([[] for _ in sizes], candidates, own, pairs)
    choice, exact = minimise(costs)
    assert exact
    assert costs.total(choice) == brute_force(costs)
    choice, exact = minimise(costs, beam_width=1)
    assert costs.total(choice) >= brute_force(costs)
    assert exact == (variables < 4)


def test_costs_of_micro_batches_and_of_some_candidates() -> None:
    model = Model(8)
    block(model)
    problem = problem_of(model, load_machine("p100x4"), AnalyticCosts())
    one, two, four = (summed_costs(problem, tied=False, rounds=n) for n in (1, 2, 4))

    def few(degrees: tuple[int, ...]) -> bool:
        return max(degrees) == 4 or max(degrees) == 1

    some = summed_costs(problem, tied=False, among=few)
    for v, candidates in enumerate(one.candidates):
        # Weights are synchronised once: each micro-batch more costs the same.
        assert (four.own[v] - two.own[v] == 2 * (two.own[v] - one.own[v])).all()
        assert (two.own[v] > one.own[v]).all()
        kept = [i for i, degrees in enumerate(candidates) if few(degrees)]
        assert some.candidates[v] == [candidates[i] for i in kept]
        assert (some.own[v] == one.own[v][kept]).all()
    assert any((two.own[v] < 2 * one.own[v]).any() for v in range(len(one.own)))
    for pair, costs in one.pairs.items():
        assert (four.pairs[pair] == 4 * costs).all()


@pytest.mark.parametrize("machine", ["p100x8", "k80x8"])
def test_a_transfer_takes_what_its_busiest_link_does(machine: str) -> None:
    model = Model(8)
    model.dense(model.dense(model.input((8,)), 16, name="a"), 8, name="b")
    problem = problem_of(model, load_machine(machine), AnalyticCosts())
    costs = summed_costs(problem, tied=False)
    a, b = (problem.graph.operators[i] for i in (0, 1))
    names = problem.devices.names
    tensor = problem.graph.tensors.index(a.output)
    for i, da in enumerate(costs.candidates[0]):
        for j, db in enumerate(costs.candidates[1]):
            configs = {
                **strategy_of(problem, "single"),
                a.name: ParallelConfig(da, tuple(names[: int(np.prod(da))])),
                b.name: ParallelConfig(db, tuple(names[: int(np.prod(db))])),
            }
            tasks = full(problem, problem.checked(Strategy(configs))).tasks
            expected = 0
            for flow in (0, 1):
                hops = tasks[(tasks["flow"] == flow) & (tasks["tensor"] == tensor)]
                load = [hops["exe_time"][hops["device"] == d].sum() for d in set(hops["device"])]
                expected += max(load, default=0)
            cost = costs.pairs[0, 1][i, j]
            # Latencies, the sum of partial gradients, and roundings come on top.
            assert expected - 100 <= cost <= expected + 30_000


def test_unrolled_steps_are_tied() -> None:
    model = build("rnnlm", 16, steps=6, hidden=64, vocabulary=100)
    problem = problem_of(model, load_machine("p100x8"), AnalyticCosts())
    result = solve(problem)
    assert result.tied
    assert result.exact
    configs = {result.strategy[f"lstm1.{t}"] for t in range(6)}
    assert len(configs) == 1


def test_networks_of_modules_vanish() -> None:
    problem = problem_of(build("inception_v3"), load_machine("p100x4"), AnalyticCosts())
    result = solve(problem)
    assert result.exact
    assert not result.tied
    result.strategy.checked(problem.graph, problem.devices)
    costs = summed_costs(problem, tied=False)
    data = [its.index(max(its, key=lambda degrees: degrees[0])) for its in costs.candidates]
    assert result.summed_cost_ns < costs.total(data)


def test_operators_with_many_candidates_keep_some() -> None:
    model = Model(64)
    chain(model)
    # With reductions besides, 16 devices are more candidates than are kept by default.
    soap = SPLIT - {DimKind.REDUCTION}
    problem = problem_of(model, load_machine("p100x16"), AnalyticCosts(), dimensions=soap)
    some, every = solve(problem, max_candidates=8), solve(problem)
    assert every.exact
    assert not some.exact
    assert some.summed_cost_ns >= every.summed_cost_ns
    assert optcnn(problem) == every.strategy


def test_few_messages() -> None:
    """Where messages count as 8 KiB at least, there are fewer; on few devices, there are few."""
    network = Network.of(build("alexnet"), TrainingSpec.of())
    problem = network.problem(load_machine("k80x64"), AnalyticCosts())
    fine, coarse = (full(problem, named(name, problem)) for name in ("optcnn", "optcnn-coarse"))
    assert len(coarse.tasks) < 0.6 * len(fine.tasks)
    small = network.problem(load_machine("k80x8"), AnalyticCosts())
    with pytest.raises(UserError, match="for more than 8 devices"):
        named("optcnn-coarse", small)
