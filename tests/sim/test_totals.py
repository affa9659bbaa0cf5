"""What is told of an iteration as a whole is the sum over its tasks, and none is looked at for it.

Of a large machine there are a hundred million tasks. Listing those of Llama-3 70B on 512 GPUs, to
sum up what is computed again, took 13 GB and two thirds of the time of `flexlegion simulate`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import pytest
from simulated import strategy_of
from test_sharded_weights import layers, sharded

from flexlegion.base.errors import UserError
from flexlegion.plan.passes import PASSES, RECOMPUTING
from flexlegion.report.timelines import details, time_excess
from flexlegion.sim.deviations import deviations
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.strategy import ResolvedStrategy

Change = Callable[[ResolvedStrategy], ResolvedStrategy]


def again(strategy: ResolvedStrategy) -> ResolvedStrategy:
    """With every other operator run again in the backward pass."""
    return strategy.changed(
        {name: replace(strategy[name], again=True) for name in ("layer0", "layer2")}
    )


def problems() -> list[Problem]:
    return [layers("p100x8", rounds) for rounds in (1, 4)]


@pytest.mark.parametrize("problem", problems(), ids=["1", "4"])
@pytest.mark.parametrize(
    "change",
    [
        lambda s: s,
        again,
        lambda s: sharded(s, "weights", "states"),
        lambda s: again(sharded(s, "weights")),
    ],
    ids=["plain", "again", "weights", "both"],
)
def test_totals_are_sums_over_tasks(problem: Problem, change: Change) -> None:
    line = full(problem, change(strategy_of(problem, "data")))
    normal = line.tasks["hop"] < 0
    first = line.tasks["hop"] == 0
    for number, name in enumerate(PASSES):
        its = line.tasks["pass"] == number
        assert line.computation_ns[name] == line.tasks["exe_time"][its & normal].sum(), name
        assert line.moved_bytes[name] == line.tasks["bytes"][its & first].sum(), name
    assert line.computation_time_ns == sum(line.load_ns[name] for name in problem.devices.names)
    recomputes = any(config.again for _, config in line.strategy.items())
    assert (line.recomputed_ns > 0) == recomputes
    assert line.recomputed_ns == sum(line.computation_ns[name] for name in RECOMPUTING)


def test_no_task_is_listed_for_totals() -> None:
    problem = layers("p100x8", 4)
    line = full(problem, again(sharded(strategy_of(problem, "data"), "weights")))

    def listed() -> NoReturn:
        raise AssertionError("all tasks were listed")

    line = replace(line, simulated=listed)
    facts = details(line, {})
    assert facts["recomputed_ns"] > 0
    assert facts["gathered_bytes"] > 0
    assert time_excess(line) is None


def test_savings_on_large_machines_are_sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a group saves is about the same, found without keeping an iteration's tasks."""
    problem = layers("p100x8", 2)
    usual = strategy_of(problem, "data")
    strategy = sharded(usual, "weights", "states")
    whole = full(problem, strategy).iteration_time_ns
    exact = {d.operators: d for d in deviations(problem, strategy, usual)}
    monkeypatch.setattr("flexlegion.sim.deviations.LARGE", 1)
    monkeypatch.delattr("flexlegion.sim.deviations.Simulation")
    sketched = deviations(problem, strategy, usual)
    assert {d.operators for d in sketched} == set(exact)
    for its in sketched:
        assert its.sketched
        assert its.saved_bytes is None
        assert its.saved_ns == pytest.approx(exact[its.operators].saved_ns, abs=0.1 * whole)
        assert not exact[its.operators].sketched


def test_iterations_that_memory_cannot_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layers("p100x8")
    strategy = strategy_of(problem, "data")
    monkeypatch.setattr("flexlegion.sim.simulator.memory_bytes", lambda: 10_000)
    with pytest.raises(UserError, match="this machine has too little memory for that; take"):
        full(problem, strategy)
