"""Searches: reproducible, never worse than a start, and at their ends what they say they are."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from deltas import SMALL, Case, problem_for
from simulated import (
    ArbitraryCosts,
    check_local_optimum,
    images,
    problem_of,
    strategy_of,
)

import flexlegion as fl
from flexlegion import Model
from flexlegion.base.errors import UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import named
from flexlegion.machine.topology import Topology
from flexlegion.networks.network import Network
from flexlegion.profiling.machines import load_machine
from flexlegion.searches import descent
from flexlegion.searches.chain import Chain, ChainOptions, prepare_candidates
from flexlegion.searches.mcmc import search
from flexlegion.searches.options import Budget, SearchOptions
from flexlegion.searches.result import SearchResult
from flexlegion.searches.start import tie_groups
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.zoo import build

CASES = [
    Case("rnnlm", "p100x4"),
    Case("images", "p100x2", 5),
    Case("lenet", "shared"),
    Case("grouped", "p100x4"),
]
STARTS = ("data", "model", "random:3")


def run(problem: Problem, proposals: int = 200, **arguments: object) -> SearchResult:
    starts = {name: strategy_of(problem, name) for name in STARTS}
    budget = Budget(seconds=None, proposals=proposals)
    options = SearchOptions(descent=False)
    return search(problem, starts, budget, **{"chains": 2, "options": options, **arguments})


@pytest.mark.parametrize("case", CASES)
def test_a_search_by_proposals_is_reproducible(case: Case) -> None:
    one, two = (run(problem_for(case), seed=7) for _ in range(2))
    assert dict(one.strategy) == dict(two.strategy)
    assert one.states == two.states
    assert (one.start, one.iteration_time_ns) == (two.start, two.iteration_time_ns)
    assert run(problem_for(case), seed=8).states != one.states


@pytest.mark.parametrize("slice_seconds", [1e-9, 10.0])
def test_the_descent_of_a_search_ends(
    slice_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little of it fits into a slice: at the same local optimum."""
    monkeypatch.setattr(descent, "SLICE_SECONDS", slice_seconds)
    case = Case("sequences", "p100x4")
    result = run(problem_for(case), 20, seed=1, options=SearchOptions())
    assert result.local_optimum
    monkeypatch.undo()
    again = run(problem_for(case), 20, seed=1, options=SearchOptions())
    assert dict(again.strategy) == dict(result.strategy)
    assert again.proposals == result.proposals > 300


@pytest.mark.parametrize("case", [Case("lenet", "p100x4"), Case("images", "p100x4", 5)])
def test_chains_share_a_descent(case: Case) -> None:
    """Against a deadline, which is far away, each changes its share of the operators."""
    problem = problem_for(case)
    prepare_candidates(problem)
    groups = tie_groups(problem)
    chains = [Chain(problem, strategy_of(problem, "model"), seed, groups) for seed in range(3)]
    with ThreadPoolExecutor(len(chains)) as pool:
        assert descent.descend(chains, pool, time.monotonic() + 300)
    assert len({chain.state.best_time for chain in chains}) == 1
    check_local_optimum(problem, chains[0].best)


def test_the_same_result_on_any_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a budget of time, neither speed nor cores decide."""
    problem = problem_for(CASES[1])
    starts = {name: strategy_of(problem, name) for name in STARTS}
    results = []
    for cores in (1, 64):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        results.append(search(problem, starts, Budget(None, 100), seed=3))
    assert results[0].chains == results[1].chains == 2
    assert dict(results[0].strategy) == dict(results[1].strategy)
    assert results[0].proposals == results[1].proposals


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("proposals", [1, 100])
def test_never_worse_than_any_start(case: Case, proposals: int) -> None:
    problem = problem_for(case)
    result = run(problem, proposals)
    times = {n: full(problem, strategy_of(problem, n)).iteration_time_ns for n in STARTS}
    assert result.start_times_ns == times
    assert result.iteration_time_ns <= min(times.values())
    assert full(problem, result.strategy).iteration_time_ns == result.iteration_time_ns
    assert not result.interrupted
    assert result.proposals == sum(s.proposals for of in result.states.values() for s in of)


def test_restricted_dimensions() -> None:
    """Only samples are split, by the candidates, by starts, and by what is found."""
    result = fl.search("mlp", "p100x4", proposals=50, seed=1, dimensions=["sample"], progress=False)
    assert set(result.start_times_ns) == {"data", "optcnn"}
    assert all(config.tasks == config.degrees[0] for config in result.strategy.values())
    assert result.strategy.found["dimensions"] == ["sample"]
    assert result.notes[0].endswith(
        "splits dimension 'channel' of kind parameter, which this search leaves whole"
    )
    with pytest.raises(UserError, match="splits dimension 'channel' of kind parameter"):
        fl.search("mlp", "p100x4", proposals=50, dimensions=["sample"], start=["random:1"])
    with pytest.raises(UserError, match="unknown kind of dimension 'samples'"):
        fl.search("mlp", "p100x4", proposals=50, dimensions=["samples"])


def test_what_is_tied() -> None:
    """Blocks' operators of the same place: not the projections before attention to that behind.

    And what shares weights: the first step of a recurrent layer, which has none before it, too.
    """
    tied = tied_in(build("transformer", 8, **SMALL["transformer"]))
    parts = ("query", "key", "value")
    assert {f"block{i}.{part}" for i in (1, 2) for part in parts} in tied
    assert {"block1.output", "block2.output"} in tied
    words = tied_in(build("rnnlm", 8, steps=4, vocabulary=50, hidden=8))
    for layer in ("embed", "lstm1", "lstm2", "project"):
        assert {f"{layer}.{step}" for step in range(4)} in words


def tied_in(model: Model) -> list[set[str]]:
    """The names of operators that are tied, group by group."""
    problem = problem_of(model, load_machine("p100x2"), ArbitraryCosts(0))
    tied: dict[int, set[str]] = {}
    for op, group in zip(problem.graph.operators, tie_groups(problem), strict=True):
        tied.setdefault(group, set()).add(op.name)
    return list(tied.values())


def test_tied_operators_change_together() -> None:
    """Also those of another class: they get the same degrees, on the same devices."""
    problem = problem_of(
        build("rnnlm", 8, steps=4, vocabulary=50, hidden=8),
        load_machine("p100x4"),
        ArbitraryCosts(0),
    )
    prepare_candidates(problem)
    groups = tie_groups(problem)
    start = strategy_of(problem, "data")
    chain = Chain(problem, start, 3, groups)
    chain.run(200, 0.0, ChainOptions(temperature=10.0, tied=True))
    changed = 0
    for group in set(groups):
        members = [
            chain.best[op.name]
            for op, its in zip(problem.graph.operators, groups, strict=True)
            if its == group
        ]
        assert len({config.degrees for config in members}) == 1
        assert len({config.devices for config in members}) == 1
        changed += members[0].degrees != start[problem.graph.operators[group].name].degrees
    assert changed > 3


def with_memory(size: int) -> Problem:
    """Four GPUs, each with so many bytes."""
    topology = load_machine("p100x4")
    for device in topology.devices:
        object.__setattr__(device, "memory_bytes", size)
    model = Model(8)
    images(model)
    assert isinstance(topology, Topology)
    return problem_of(model, topology, ArbitraryCosts(0))


def test_two_of_a_kind_that_have_to_differ() -> None:
    """Of few operators, half of the race's runners change each by itself.

    Two layers that read the same, and of which one is best left whole: tied, they led to a basin
    that nothing after the race got away from.
    """
    model = Model(64)
    x = model.input((2048,))
    joined = model.concat([model.dense(x, 512), model.dense(x, 512)], 1)
    model.dense(model.dense(joined, 2048), 8)
    model.loss = "mean_squared_error"
    network = Network.of(model)
    problem = network.problem(load_machine("p100x3"), AnalyticCosts())
    assert len({*tie_groups(problem)}) < len(problem.graph.operators)
    start = {"data": problem.checked(named("data", problem))}
    found = search(problem, start, Budget(None, 20_000), seed=3, options=SearchOptions(proof=False))
    assert found.iteration_time_ns <= 332_751


def test_nothing_fits_into_memory() -> None:
    with pytest.raises(UserError, match="no strategy was found that fits into the machine's mem"):
        run(with_memory(64))


def test_a_start_that_does_not_fit() -> None:
    """A search finds its way from there to one that does."""
    problem = with_memory(10**9)
    held = {n: max(full(problem, strategy_of(problem, n)).allocated_bytes.values()) for n in STARTS}
    alone = full(problem, strategy_of(problem, "single")).allocated_bytes["gpu:0"]
    assert max(held.values()) < alone
    tight = with_memory(alone - 1)
    starts = {"single": strategy_of(tight, "single")}
    result = search(tight, starts, Budget(None, 500), chains=1)
    assert result.start_times_ns == {"single": None}
    assert max(full(tight, result.strategy).allocated_bytes.values()) < alone


def test_an_interrupt_ends_a_search_with_what_it_has() -> None:
    problem = problem_for(CASES[0])
    reports: list[tuple[float, int, str]] = []

    def progress(share: float, best: int, phase: str = "") -> None:
        reports.append((share, best, phase))
        if len(reports) == 2:
            raise KeyboardInterrupt

    result = run(problem, 10**6, progress=progress)
    assert result.interrupted
    assert len(reports) == 2
    assert result.proposals < 10**6
    assert full(problem, result.strategy).iteration_time_ns == result.iteration_time_ns
    assert result.iteration_time_ns <= reports[-1][1]
    assert [phase for _, _, phase in reports] == ["starts", "race"]


def test_progress_rises_to_the_end() -> None:
    reports: list[tuple[float, int, str]] = []
    run(problem_for(CASES[1]), 300, progress=lambda *report: reports.append(report))
    shares, times, phases = zip(*reports, strict=True)
    assert list(shares) == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1
    assert list(times) == sorted(times, reverse=True)
    assert phases[:2] == ("starts", "race")
    assert phases[-1].startswith("from ")


@pytest.mark.parametrize("budget", [(None, None), (0.0, None), (None, 0), (-1.0, 5), (1e9, 5)])
def test_bad_budgets(budget: tuple[float | None, int | None]) -> None:
    with pytest.raises(UserError, match="budget"):
        Budget(*budget)
