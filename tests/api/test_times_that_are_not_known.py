"""A strategy's time is unknown for one of two reasons, and wherever that is told, it is the right
one: it does not fit into memory, or it has more tasks than are simulated."""

from __future__ import annotations

import pytest

import flexlegion as fl
from flexlegion.analysis.report import report_on
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import named
from flexlegion.networks.network import Network
from flexlegion.profiling.machines import load_machine
from flexlegion.searches.memory import where_needed
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import NO_MEMORY, TOO_MANY_TASKS, Judged, full, judge, reference
from flexlegion.strategy.strategy import ResolvedStrategy
from flexlegion.zoo import build

TOO_LARGE = Judged(None, 0, 0, 0, too_large=True)
NO_ROOM = Judged(None, 1 << 30, 10, 10)


@pytest.fixture(params=[TOO_LARGE, NO_ROOM], ids=["too large", "no room"])
def others(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Judged:
    """What is said of any strategy but `single`; that one is sketched where savings are told."""
    verdict: Judged = request.param

    def judged(problem: Problem, strategy: ResolvedStrategy, *args: object) -> Judged:
        single = dict(strategy) == dict(named("single", problem))
        return judge(problem, strategy, *args) if single else verdict

    monkeypatch.setattr("flexlegion.sim.simulator.judge", judged)
    monkeypatch.setattr("flexlegion.sim.deviations.judge", judged)
    monkeypatch.setattr("flexlegion.sim.deviations.LARGE", 1)
    return verdict


def small() -> Problem:
    return Network.of(build("lenet", 16)).problem(load_machine("p100x2"), AnalyticCosts())


def test_a_reference_has_a_time_or_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = small()
    data = named("data", problem)
    assert reference(problem, data) == (full(problem, data).iteration_time_ns, "")
    monkeypatch.setattr("flexlegion.sim.simulator.most_judged", lambda: 1)
    assert reference(problem, named("single", problem)) == (None, TOO_MANY_TASKS)


def test_explain_says_why(others: Judged) -> None:
    explained = fl.explain(build("lenet", 16), "p100x2", "single", progress=False)
    said = str(explained)
    assert explained.data_parallel_time_ns is None
    assert explained.data_parallel.reason == others.reason
    assert others.reason in said
    assert {deviation.reason for deviation in explained.deviations} == {others.reason}
    assert ("needed to fit" in said, "not known" in said) == (
        not others.too_large,
        others.too_large,
    )
    facts = explained.facts()
    assert facts["data_parallel_reason"] == others.reason
    assert all(group["reason"] == others.reason for group in facts["deviations"])


def test_a_report_says_why(others: Judged) -> None:
    page = report_on(build("lenet", 16), "p100x2", "single", progress=False).html()
    assert f"an iteration; data parallelism {others.reason}" in page
    assert (">needed to fit<" in page, ">not known<" in page) == (
        not others.too_large,
        others.too_large,
    )


def test_a_search_says_why(others: Judged) -> None:
    found = fl.search(build("lenet", 16), "p100x2", start=["single"], proposals=5, progress=False)
    assert found.untimed["data"] == others.reason
    assert others.reason in str(found)


def test_a_start_that_is_too_large_is_not_left_out_for_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stays, and is named for its size where starts are sketched."""
    problem = small()
    starts = {name: named(name, problem) for name in ("data", "expert", "single")}
    verdicts = {"data": NO_ROOM, "expert": TOO_LARGE}

    def judged(problem: Problem, strategy: ResolvedStrategy, *args: object) -> Judged:
        for name, verdict in verdicts.items():
            if strategy.source == name or dict(strategy) == dict(starts[name]):
                return verdict
        return judge(problem, strategy, *args)

    monkeypatch.setattr("flexlegion.sim.fitting.judge", judged)
    monkeypatch.setattr("flexlegion.sim.fitting.TRIED", ())
    assert list(where_needed(problem, starts, NO_ROOM)) == ["expert", "single"]
    assert NO_ROOM.reason == NO_MEMORY


def test_a_reference_of_many_tasks_is_not_simulated_after_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It took 68 s of a search for 20 (AlexNet on 4,096 GPUs, the experts' strategy)."""
    problem = small()
    data = named("data", problem)
    monkeypatch.setattr("flexlegion.sim.simulator.LARGE", 1)
    tasks = judge(problem, data, 0, "bundles").all_tasks
    told = reference(problem, data, quickly=True)
    assert told == (None, f"not simulated: {tasks:,} tasks and transfers")
    judge(problem, data)  # what was simulated before is told
    assert reference(problem, data, quickly=True).time_ns == reference(problem, data).time_ns
