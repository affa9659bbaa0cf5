"""What is said of a strategy without a timeline is what the timeline says."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from deltas import topology_of
from simulated import ArbitraryCosts, images, problem_of, sequences, strategy_of

from flexlegion import Model
from flexlegion.base.errors import NativeError
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full, judge

SPECS = ("data", "single", "model", "fsdp", "data+again", *(f"random:{n}" for n in range(4)))


def problem(network, machine: str, rounds: int = 1) -> Problem:
    model = Model(8)
    network(model)
    return problem_of(model, topology_of(machine), ArbitraryCosts(1), micro_batches=rounds)


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("machine", ["p100x4", "shared"])
@pytest.mark.parametrize("network", [images, sequences])
def test_time(network, machine: str, rounds: int) -> None:
    """And with a limit, nothing that is longer."""
    its = problem(network, machine, rounds)
    for spec in SPECS:
        strategy = strategy_of(its, spec)
        time = full(its, strategy).iteration_time_ns
        for again in (strategy, strategy.changed({})):  # known already, and not
            assert judge(its, again, time - 1)[:2] == (None, 0)
            assert judge(its, again, time)[:2] == (time, 0)
            assert judge(its, again)[:2] == (time, 0)
            assert judge(its, again, time - 1)[:2] == (None, 0)
        tasks = len(full(its, strategy).tasks)  # what ends the iteration is there once
        assert tasks <= judge(its, strategy).tasks <= rounds * tasks


def test_what_does_not_fit() -> None:
    """By as many bytes as the timeline says."""
    its = problem(images, "p100x4")
    strategy = strategy_of(its, "data")
    needs = full(its, strategy).allocated_bytes
    least = min(needs.values())
    for device in its.topology.devices:
        object.__setattr__(device, "memory_bytes", least - 1)
    small = Problem(its.graph, its.topology, its.costs, its.outputs, its.optimizer_states)
    missing = sum(need - (least - 1) for need in needs.values())
    assert judge(small, strategy)[:2] == (None, missing)
    assert not full(small, strategy).fits


def test_who_asks_again_is_told_the_same() -> None:
    """Also of the timeline, whose tasks are simulated when somebody looks at them."""
    its = problem(images, "p100x4", 2)
    strategy = strategy_of(its, "data")
    judged = judge(its, strategy)
    assert judge(its, strategy) is judged
    first, second = full(its, strategy), full(its, strategy.with_origin("file", {}))
    assert second.strategy.source == "file"
    assert second.iteration_time_ns == first.iteration_time_ns
    assert np.array_equal(first.tasks, second.tasks)


def test_pickled_strategies_know_nothing() -> None:
    its = problem(images, "p100x4")
    strategy = strategy_of(its, "data")
    judge(its, strategy)
    twin = pickle.loads(pickle.dumps(strategy))
    assert dict(twin) == dict(strategy)
    assert strategy.known
    assert not twin.known


def test_negative_limit() -> None:
    its = problem(images, "p100x4")
    with pytest.raises(NativeError, match="negative limit"):
        judge(its, strategy_of(its, "data"), -1)
