"""Duels: the probability of a wrong choice, what noise cannot do, and what is said in the end."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexlegion.base.errors import UserError
from flexlegion.profiling.intervals import evidence, interval, wins_needed
from flexlegion.tuner.duel import Duel, Rules

DATA = "data parallelism"

# Of a round, what disturbs the times of all that take part (the same factor), and that of each.
Noise = Callable[[np.random.Generator, int], tuple[float, np.ndarray]]


def quiet(rng: np.random.Generator, n: int) -> tuple[float, np.ndarray]:
    """A per cent or so."""
    return 1.0, np.exp(0.01 * rng.standard_normal(n))


def drifting(rng: np.random.Generator, n: int) -> tuple[float, np.ndarray]:
    """A machine that is up to three times as slow from round to round."""
    return rng.uniform(1, 3), np.exp(0.05 * rng.standard_normal(n))


def pausing(rng: np.random.Generator, n: int) -> tuple[float, np.ndarray]:
    """One that pauses now and then, so that times have no mean."""
    return 1.0, 1 + np.abs(0.05 * rng.standard_cauchy(n))


def fight(rules: Rules, speedups: dict[str, float], noise: Noise, seed: int) -> Duel:
    """A duel to its end."""
    rng = np.random.default_rng(seed)
    duel = Duel(DATA, list(speedups), rules)
    while not duel.over(0.0):
        names = duel.taking_part
        shared, own = noise(rng, len(names))
        duel.add(
            {
                name: shared * each / speedups.get(name, 1.0)
                for name, each in zip(names, own, strict=True)
            }
        )
    return duel


def times(*rounds: tuple[float, ...]) -> list[dict[str, float]]:
    """Rounds of data parallelism and finalists a, b, ..."""
    return [dict(zip((DATA, "a", "b", "c"), seconds, strict=False)) for seconds in rounds]


@pytest.mark.parametrize("error", [0.25, 0.05, 0.025, 0.05 / 6])
def test_a_fair_coin_hardly_ever_convinces(error: float) -> None:
    """Over all sequences of flips, however far somebody goes on: computed, not drawn."""
    alive, convinced = {0: 1.0}, 0.0  # probabilities of wins so far, of those not convinced yet
    for flips in range(1, 200):
        needed = wins_needed(flips, error) or flips + 1
        following: dict[int, float] = {}
        for won, probability in alive.items():
            for more in (0, 1):
                following[won + more] = following.get(won + more, 0.0) + probability / 2
        convinced += sum(p for won, p in following.items() if won >= needed)
        alive = {won: p for won, p in following.items() if won < needed}
    assert 0.2 * error < convinced <= error


def test_evidence() -> None:
    assert evidence(0, 0) == 1  # nothing seen, nothing won
    assert evidence(1, 0) == (2 + 3 / 2) / 2
    assert evidence(8, 0) == (2**8 + (2**9 - 1) / 9) / 2
    assert evidence(3, 3) < 1
    assert evidence(0, 6) < evidence(3, 3)
    for flips in (5, 20):
        assert math.comb(flips, 0) == 1
        # On average over a fair coin's flips, a bet at fair odds neither wins nor loses.
        mean = sum(
            math.comb(flips, won) / 2**flips * evidence(won, flips - won)
            for won in range(flips + 1)
        )
        assert mean == pytest.approx(1)


def test_intervals() -> None:
    assert interval([1.2] * 4, 0.025) == (0, math.inf)
    assert interval([1.3, 1.1, 1.2, 1.4, 1.5, 1.6], 0.025) == (1.1, 1.6)
    assert wins_needed(20, 0.025) == 17
    values = [float(v) for v in range(1, 21)]
    assert interval(values, 0.025) == (4.0, 17.0)


@given(
    noise=st.sampled_from([quiet, drifting, pausing]),
    speedup=st.sampled_from([0.7, 0.95, 0.999, 1.0, 1.009]),
    challengers=st.integers(1, 3),
    first_seed=st.integers(0, 2**32),
)
def test_slower_ones_are_chosen_less_often_than_stated(
    noise: Noise, speedup: float, challengers: int, first_seed: int
) -> None:
    rules = Rules(confidence=0.9, max_rounds=30)
    names = {f"found {i}": speedup for i in range(challengers)}
    duels = 60
    wrong = sum(fight(rules, names, noise, first_seed + i).chosen != DATA for i in range(duels))
    # At most a tenth of them, plus what chance adds once in very many runs of this test.
    assert wrong <= 0.1 * duels + 5 * math.sqrt(0.1 * 0.9 * duels)


@pytest.mark.parametrize("noise", [quiet, drifting, pausing])
def test_clearly_faster_ones_are_found(noise: Noise) -> None:
    for seed in range(20):
        duel = fight(Rules(), {"slow": 0.8, "fast": 1.2, "fastest": 1.5}, noise, seed)
        assert duel.chosen == "fastest"
        assert duel.rounds < 30


@given(
    st.lists(st.tuples(*[st.floats(0.5, 2.0)] * 3, st.floats(0.01, 100)), min_size=1, max_size=30)
)
def test_properties(rounds: list[tuple[float, ...]]) -> None:
    """Of any times: what is chosen won most rounds, and a round's own speed does not matter."""
    rules = Rules(rounds=len(rounds), max_rounds=len(rounds))
    plain, scaled = Duel(DATA, ["a", "b"], rules), Duel(DATA, ["a", "b"], rules)
    for data, a, b, factor in rounds:
        plain.add({DATA: data, "a": a, "b": b})
        scaled.add({DATA: factor * data, "a": factor * a, "b": factor * b})
    assert plain.over(0.0)
    if plain.chosen != DATA:
        chosen = plain.standings[plain.chosen]
        assert chosen.low > 1.01
        assert chosen.low <= chosen.median <= chosen.high
        assert 2 * chosen.won > len(chosen.speedups)
    for name, standing in plain.standings.items():
        other = scaled.standings[name].speedups
        assert standing.speedups == pytest.approx(other[: len(standing.speedups)])


def test_goes_on_while_undecided() -> None:
    """Six rounds won decide; if one of them is lost, it takes more."""
    duel = Duel(DATA, ["a"], Rules(rounds=2))
    for seconds in times(*[(1.0, 0.8)] * 2, (1.0, 1.3), *[(1.0, 0.8)] * 20):
        duel.add(seconds)
        if duel.over(0.0):
            break
    assert duel.rounds == min(n for n in range(20) if wins_needed(n, 0.025) == n - 1)
    assert 6 < duel.rounds < 16
    assert duel.reason == (
        f"a is chosen over data parallelism: it won {duel.rounds - 1} of {duel.rounds} rounds, and "
        "its median speed-up is 1.25 (1.25 to 1.25 with 95% confidence)"
    )


def test_those_that_are_out_do_not_train_any_more() -> None:
    duel = Duel(DATA, ["a", "b"], Rules(max_rounds=20))
    while not duel.over(0.0):
        [seconds] = times((1.0, 1.1, 0.99 if duel.rounds % 2 else 1.01))
        duel.add({name: seconds[name] for name in duel.taking_part})
    assert [len(s.speedups) for s in duel.standings.values()] == [8, 20]
    assert duel.taking_part == [DATA, "b"]
    assert duel.reason == (
        "data parallelism stays: after 20 rounds, the most allowed, no other is clearly more than "
        "1% faster; the best, b, won 10 of 20 rounds, and its median speed-up is 1.00 (0.99 to "
        "1.01 with 95% confidence)"
    )


def test_one_that_another_surely_beats_is_out() -> None:
    duel = Duel(DATA, ["a", "b"], Rules(rounds=10))
    while not duel.over(0.0):
        duel.add({DATA: 2.0, "a": 1.5, "b": 1.0})
    assert (duel.rounds, duel.chosen) == (10, "b")
    assert [s.verdict for s in duel.standings.values()] == ["out", "faster"]


def test_reasons_to_keep_the_baseline() -> None:
    nothing = Duel(DATA, [], Rules())
    nothing.add({DATA: 1.0})
    assert nothing.over(0.0)
    assert nothing.reason == "data parallelism stays: there is nothing to compare it with"

    slower = Duel(DATA, ["a"], Rules())
    while not slower.over(0.0):
        slower.add({DATA: 1.0, "a": 1.25})
    assert slower.reason == (
        "data parallelism stays: no other is more than 1% faster; the best, a, won 0 of 6 rounds, "
        "and its median speed-up is 0.80 (0.80 to 0.80 with 95% confidence)"
    )

    late = Duel(DATA, ["a"], Rules(rounds=2, seconds=5))
    late.add({DATA: 1.0, "a": 0.8})
    assert not late.over(seconds=99)  # the least number of rounds comes first
    late.add({DATA: 1.0, "a": 0.9})
    assert not late.over(seconds=4)
    assert late.over(seconds=5)
    assert late.chosen == DATA
    assert late.reason == (
        "data parallelism stays: after 2 rounds, as many as 5 s allow, no other is clearly more "
        "than 1% faster; the best, a, won 2 of 2 rounds, and its median speed-up is 1.18 (too few "
        "rounds for an interval)"
    )
    assert late.standings["a"].facts() == {
        "name": "a",
        "rounds": 2,
        "won": 2,
        "speedups": [1 / 0.8, 1 / 0.9],
        "median_speedup": pytest.approx((1 / 0.8 + 1 / 0.9) / 2),
        "interval": None,
        "verdict": "undecided",
    }


def test_hardly_faster_is_not_faster() -> None:
    """By less than the gain asked for, though in every round."""
    assert fight(Rules(), {"a": 1.005}, lambda _, n: (1.0, np.ones(n)), 0).chosen == DATA


def test_rules() -> None:
    for wrong, message in (
        ({"rounds": 0}, "there has to be at least 1 round, not 0"),
        ({"rounds": 9, "max_rounds": 3}, "at least 9 rounds, and at most 3"),
        ({"confidence": 1.0}, "a confidence is between 0 and 1, but this is 1.0"),
    ):
        with pytest.raises(UserError, match=message):
            Rules(**wrong)
