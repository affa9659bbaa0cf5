"""Searches where memory does not suffice: they start with what saves some, and end with little."""

from __future__ import annotations

from dataclasses import replace

import pytest

import flexlegion as fl
from flexlegion.analysis.number_of_rounds import Case, in_rounds
from flexlegion.analysis.setting import Setting
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import named
from flexlegion.machine.topology import Topology
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.profiling.machines import load_machine
from flexlegion.searches import memory
from flexlegion.searches.memory import where_needed, with_less
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.zoo import build

SIZES = {"steps": 64, "layers": 6, "hidden": 64, "heads": 4, "vocabulary": 64}


def machine_of(bytes_: int) -> Topology:
    """Two GPUs of so much memory each."""
    topology = load_machine("p100x2")
    for device in topology.devices:
        object.__setattr__(device, "memory_bytes", bytes_)
    return topology


def problem_of(bytes_: int = 1 << 40) -> Problem:
    """A small transformer's training there."""
    network = Network.of(build("gpt", 16, **SIZES))
    return network.problem(machine_of(bytes_), AnalyticCosts())


def allocated(problem: Problem, strategy: str) -> int:
    """In the fullest memory."""
    return max(full(problem, named(strategy, problem)).allocated_bytes.values())


@pytest.fixture(scope="module")
def between() -> int:
    """Memory for data parallelism with recomputation, and for half of what it saves."""
    problem = problem_of()
    all_, again = (allocated(problem, its) for its in ("data", "data+again"))
    assert again < all_
    return (all_ + again) // 2


def test_starts_that_fit_stay() -> None:
    problem = problem_of()
    starts = {name: named(name, problem) for name in ("data", "single")}
    assert where_needed(problem, starts) == starts


def test_starts_that_do_not_fit(between: int) -> None:
    """Recomputation takes their place where it helps; what still does not fit is left out."""
    problem = problem_of(between)
    starts = {name: named(name, problem) for name in ("data", "single")}
    assert set(where_needed(problem, starts)) == {"data+again"}
    nowhere = problem_of(1)
    starts = {name: named(name, nowhere) for name in ("data", "single")}
    assert where_needed(nowhere, starts) == starts  # what then fails says why


@pytest.mark.parametrize("large", [False, True])
def test_less_of_it(between: int, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What memory allows is taken back: the strategy is faster, fits, and is no other otherwise.

    Also if it is so large that sketches compare: the time is a simulation's.
    """
    if large:
        monkeypatch.setattr(memory, "LARGE", 0)
    problem = problem_of(between)
    again = named("data+again", problem)
    strategy, time_ns = with_less(problem, again, None)
    line = full(problem, strategy)
    assert line.fits
    assert time_ns == line.iteration_time_ns < full(problem, again).iteration_time_ns
    counts = [sum(config.again for config in its.values()) for its in (again, strategy)]
    assert 0 < counts[1] < counts[0]
    same = {name: replace(config, again=again[name].again) for name, config in strategy.items()}
    assert same == dict(again)
    assert with_less(problem, strategy, 0.0) == (strategy, time_ns)  # no time for anything
    plenty = problem_of()
    strategy, _ = with_less(plenty, named("data+again", plenty), None)
    assert not any(config.again for config in strategy.values())


def wide(bytes_: int = 1 << 40, batch: int = 8) -> Problem:
    """Large weights, few activations: what sharding is for."""
    model = fl.Model(batch)
    x = model.input((512,))
    for number in range(40):
        x = model.dense(x, 512, name=f"layer{number}")
    model.loss = "mean_squared_error"
    return Network.of(model).problem(machine_of(bytes_), AnalyticCosts())


def test_weights_that_do_not_fit() -> None:
    """Sharded ones take their place, and as many are whole in the end as fit."""
    all_, sharded = (allocated(wide(), its) for its in ("data", "fsdp"))
    assert sharded < 0.75 * all_
    problem = wide((all_ + sharded) // 2)
    (start,) = where_needed(problem, {"data": named("data", problem)}).items()
    assert start[0] == "data+zero3"
    strategy, time_ns = with_less(problem, start[1], None)
    line = full(problem, strategy)
    assert line.fits
    assert time_ns == line.iteration_time_ns < full(problem, start[1]).iteration_time_ns
    counts = [
        sum(config.sharding == "weights" for config in its.values()) for its in (start[1], strategy)
    ]
    assert 0 < counts[1] < counts[0]
    # With recomputation alone, it would not fit.
    assert not full(problem, named("data+again", problem)).fits


def test_both_are_needed() -> None:
    """Where neither recomputation nor sharded weights suffice, both are there."""
    sizes = [allocated(wide(batch=4096), its) for its in ("data+again", "fsdp", "fsdp+again")]
    assert sizes[2] < min(sizes[:2])
    problem = wide((sizes[2] + min(sizes[:2])) // 2, batch=4096)
    assert set(where_needed(problem, {"data": named("data", problem)})) == {"data+zero3+again"}


def test_search(between: int) -> None:
    """Without a hint, where data parallelism does not fit."""
    network = Network.of(build("gpt", 16, **SIZES))
    found = fl.search(network, machine_of(between), proposals=50, chains=1, progress=False)
    assert "data" not in found.start_times_ns
    assert found.start_times_ns["data+again"] is not None
    assert found.timeline.fits
    problem = problem_of(between)
    most = full(problem, named("data+again", problem))
    assert found.iteration_time_ns < most.iteration_time_ns


def test_number_of_micro_batches() -> None:
    """One, where that fits; else the faster of recomputation and of micro-batches."""
    network = Network.of(build("gpt", 16, **SIZES))
    options = {"proposals": 20, "chains": 1, "progress": False, "most_micro_batches": 4}
    found = fl.search(network, machine_of(1 << 40), **options)
    assert found.setting.network.training.micro_batches == 1
    assert found.notes[0].startswith("micro-batches, and the fastest start of each: 1 (")
    of_two = Network.of(build("gpt", 16, **SIZES), TrainingSpec.of(micro_batches=2))
    problem = of_two.problem(machine_of(1 << 40), AnalyticCosts())
    in_two = full(problem, named("data", problem))
    small = machine_of(max(in_two.allocated_bytes.values()))
    found = fl.search(network, small, **options)
    assert found.timeline.fits
    assert found.iteration_time_ns <= in_two.iteration_time_ns
    assert found.strategy.found["micro_batches"] == found.setting.network.training.micro_batches
    (times,) = (note for note in found.notes if note.startswith("micro-batches"))
    assert times.count("(") == 3
    with pytest.raises(fl.UserError, match="is given, 2, and to be chosen"):
        fl.search(of_two, small, **options)
    with pytest.raises(fl.UserError, match="the number of micro-batches is 1 to 4,096, but is 0"):
        fl.search(network, small, most_micro_batches=0, proposals=1)


def test_batches_that_cannot_be_divided() -> None:
    """Which numbers are possible is said."""
    network = Network.of(build("gpt", 6, **SIZES))
    options = {"proposals": 20, "chains": 1, "progress": False}
    found = fl.search(network, machine_of(1 << 40), most_micro_batches=16, **options)
    assert "4 (not possible: a batch of 6 samples cannot be divided" in found.notes[0]


def test_numbers_are_not_tried_when_half_of_the_budget_is_used_up() -> None:
    """Once some number fits."""
    network = Network.of(build("gpt", 16, **SIZES))
    tried: list[int] = []

    def case_of(network: Network) -> Case:
        tried.append(network.training.micro_batches)
        setting = Setting.of(network, machine_of(1 << 40))
        return Case(setting, {"data": named("data", setting.problem)}, ())

    (case,) = in_rounds(network, 16, case_of, lambda: 0.6)
    assert tried == [1]
    assert "2 and more (not tried, as half of the budget is used up)" in case.notes[0]
    tried.clear()
    in_rounds(network, 4, case_of, lambda: 0.4)
    assert tried == [1, 2, 4]
