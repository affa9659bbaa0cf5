"""Times beside a reference: what a machine's moods do not change, and when they are too much."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexlegion.base.errors import UserError
from flexlegion.profiling.intervals import Estimate, estimate
from flexlegion.tuner.rounds import Estimation, Limits, rest_of


def measured(rounds: Estimation, times: dict[str, float], seed: int, mood: float) -> Estimation:
    """Until the end; in each round the machine is slower by up to `mood`, for all alike."""
    rng = np.random.default_rng(seed)
    while not rounds.over(0.0):
        slower = 1 + mood * rng.random()
        rounds.add(
            {
                name: slower * times[name] * math.exp(0.01 * rng.standard_normal())
                for name in rounds.taking_part
            }
        )
    return rounds


@given(seed=st.integers(0, 2**32), mood=st.sampled_from([0.0, 0.5, 3.0]))
def test_a_machines_moods_do_not_change_ratios(seed: int, mood: float) -> None:
    times = {"data": 2.0, "single": 3.0, "model": 5.0}
    rounds = measured(Estimation("data", ["single", "model"], Limits()), times, seed, mood)
    for name in ("single", "model"):
        found = rounds.estimate(name)
        assert found.value == pytest.approx(times[name] / 2, rel=0.05)
        assert found.low <= found.value <= found.high


def test_intervals_hold() -> None:
    """The true ratio lies outside of the interval in at most one of twenty cases."""
    outside = 0
    for seed in range(200):
        rounds = Estimation("data", ["single"], Limits(width=0.005))
        found = measured(rounds, {"data": 1.0, "single": 2.0}, seed, 1.0).estimate("single")
        outside += not found.low <= 2.0 <= found.high
    assert outside <= 10


def test_who_is_known_leaves() -> None:
    """After the fewest rounds; the reference stays for the others, until the most."""
    rounds = Estimation("data", ["steady", "shaky"], Limits(rounds=6, max_rounds=9))
    for number in range(9):
        assert not rounds.over(1e9 if number < 6 else 0.0)
        assert ("steady" in rounds.taking_part) == (number < 6)
        assert {"data", "shaky"} <= set(rounds.taking_part)
        rounds.add({"data": 1.0, "steady": 2.0, "shaky": 1.0 + number % 2})
    assert rounds.over(0.0)
    assert len(rounds.ratios["steady"]) == 6
    assert len(rounds.ratios["shaky"]) == 9
    late = Estimation("data", ["shaky"], Limits(rounds=1, seconds=5))
    late.add({"data": 1.0, "shaky": 2.0})
    assert not late.over(4.0)
    assert late.over(6.0)


def test_estimates() -> None:
    few = estimate([1.0, 3.0, 2.0], 0.95)
    assert (few.value, few.known) == (2.0, False)
    assert Estimate(10, 9, 12).width == pytest.approx(0.2)
    assert Estimate(10, 9, 12).times(2) == Estimate(20, 18, 24)
    assert not Estimate(10, 0, math.inf).known


def test_rest() -> None:
    quiet = rest_of([1.0, 1.02, 0.99, 1.0, 1.01, 1.0])
    assert not quiet.restless
    assert quiet.verdict.startswith("at rest")
    slower = rest_of([1.0, 1.0, 1.0, 1.1, 1.2, 1.2])
    assert slower.drift == pytest.approx(1.2)
    assert slower.restless
    assert rest_of([1.2, 1.2, 1.1, 1.0, 1.0, 1.0]).restless  # faster, too
    assert rest_of([1.0, 1.4, 1.0, 1.4, 1.0, 1.4]).restless  # and what jumps
    busy = rest_of([1.0] * 6, others=0.3)
    assert busy.restless
    assert "too restless" in busy.verdict
    assert "other programs had 30% of it" in busy.verdict
    assert not rest_of([1.0]).restless
    assert quiet.facts()["others"] is None


def test_wrong_limits() -> None:
    with pytest.raises(UserError, match="at least 9 rounds, and at most 8"):
        Limits(rounds=9, max_rounds=8)
    with pytest.raises(UserError, match="a confidence is between 0 and 1"):
        Limits(confidence=1.0)
