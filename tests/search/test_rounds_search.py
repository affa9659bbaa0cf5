"""Searches of strategies for several micro-batches, and the strategy that they start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flexlegion as fl
from flexlegion.base.errors import UserError
from flexlegion.console.text import duration
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import named
from flexlegion.known_strategies.pipeline import cut
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.profiling.machines import load_machine
from flexlegion.searches.exhaustive import exhaustive
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.zoo import build

SIZES = {"steps": 16, "layers": 4, "hidden": 32, "heads": 4, "vocabulary": 64}


def problem_of(micro_batches: int, machine: str = "p100x4") -> Problem:
    """A small transformer's training."""
    training = TrainingSpec.of(micro_batches=micro_batches)
    network = Network.of(build("gpt", 16, **SIZES), training)
    return network.problem(load_machine(machine), AnalyticCosts())


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(1, 4))
def test_cut(work: list[int], parts: int) -> None:
    """Runs in order, at most so many, and no way to cut has a smaller largest one."""
    numbers = cut(work, parts)
    assert len(numbers) == len(work)
    assert numbers[0] == 0
    assert all(0 <= b - a <= 1 for a, b in pairwise(numbers))
    assert numbers[-1] < parts

    def least(rest: list[int], parts: int) -> int:
        if parts == 1 or len(rest) < 2:
            return sum(rest)
        return min(max(sum(rest[:i]), least(rest[i:], parts - 1)) for i in range(1, len(rest) + 1))

    sums = [0] * parts
    for its, number in zip(work, numbers, strict=True):
        sums[number] += its
    assert max(sums) == least(work, parts)


def one_buffer(strategy: Mapping[str, fl.ParallelConfig]) -> dict[str, fl.ParallelConfig]:
    """The same with one micro-batch at a time at each operator."""
    return {name: replace(config, buffers=1) for name, config in strategy.items()}


def test_buffers_pay() -> None:
    """More micro-batches under way take less time, and more memory where they begin."""
    problem = problem_of(8)
    strategy = named("pipeline", problem)
    one = strategy.changed(one_buffer(strategy))
    slow, fast = full(problem, one), full(problem, strategy)
    assert fast.iteration_time_ns < 0.6 * slow.iteration_time_ns
    assert fast.allocated_bytes["gpu:0"] > slow.allocated_bytes["gpu:0"]


def test_search_changes_buffers() -> None:
    """From a pipeline whose stages take one micro-batch each, it finds that more pay."""
    model = build("gpt", 16, **SIZES)
    start = named("pipeline", problem := problem_of(8))
    one = start.changed(one_buffer(start))
    found = fl.search(
        model, "p100x4", start=[fl.Strategy(dict(one))], proposals=3000, micro_batches=8
    )
    assert found.iteration_time_ns < full(problem, one).iteration_time_ns
    assert max(config.buffers for config in found.strategy.values()) > 1
    assert found.strategy.found is not None
    assert found.strategy.found["micro_batches"] == 8


def test_exhaustive_search_refuses() -> None:
    """Its bounds are those of a batch in one piece."""
    problem = problem_of(2, "p100x2")
    with pytest.raises(UserError, match="takes a batch in one piece"):
        exhaustive(problem, named("data", problem))


def test_numbers_are_told_with_what_their_fastest_starts_take() -> None:
    model = build("gpt", 16, **SIZES)
    found = fl.search(model, "p100x4", proposals=5, most_micro_batches=2)
    chosen = found.setting.problem.graph.micro_batches
    told = next(note for note in found.notes if note.startswith("micro-batches, and the fastest"))
    fastest = min(its for its in found.start_times_ns.values() if its is not None)
    assert f"{chosen} ({duration(fastest)})" in told
