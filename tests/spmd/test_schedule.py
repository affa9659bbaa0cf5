"""Pipelines take what theory says, whatever the numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flexlegion.spmd.schedule import Schedule, Turn, orders, scheduled


def _pipeline(
    stages: int, runs: int, rounds: int, forward: int, backward: int, kind: str = "1f1b"
) -> Schedule:
    of_run = [run % stages for run in range(stages * runs)]
    times = {(False, run): forward for run in range(len(of_run))}
    times |= {(True, run): backward for run in range(len(of_run))}
    readers = {run: {run + 1: 0} if run + 1 < len(of_run) else {} for run in range(len(of_run))}
    return scheduled(of_run, orders(of_run, rounds, kind), times, readers)


@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 50), st.integers(1, 50))
def test_equal_stages(stages: int, rounds: int, forward: int, backward: int) -> None:
    for kind in ("1f1b", "gpipe"):
        its = _pipeline(stages, 1, rounds, forward, backward, kind)
        assert max(its.ends.values()) == (rounds + stages - 1) * (forward + backward)
        assert len(its.ends) == 2 * rounds * stages
    assert its.in_flight == (rounds,) * stages
    its = _pipeline(stages, 1, rounds, forward, backward)
    assert its.in_flight == tuple(min(rounds, stages - stage) for stage in range(stages))


@given(st.integers(2, 4), st.integers(2, 4), st.integers(1, 4), st.integers(1, 20))
def test_runs_of_layers(stages: int, runs: int, groups: int, time: int) -> None:
    """With v runs a stage the bubble is a v-th: (v m + p - 1) (F + B) / v."""
    rounds = stages * groups
    its = _pipeline(stages, runs, rounds, time, 2 * time)
    assert max(its.ends.values()) == (runs * rounds + stages - 1) * 3 * time
    assert len(its.ends) == 2 * rounds * stages * runs


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 11))
def test_any_number_of_micro_batches(stages: int, runs: int, rounds: int) -> None:
    """Nothing waits for ever, also if groups are larger, or all there are are fewer than stages."""
    its = _pipeline(stages, runs, rounds, 1, 2)
    assert len(its.ends) == 2 * rounds * stages * runs


def test_groups_that_are_larger() -> None:
    """Six micro-batches go round four stages at once; five go round two in no equal groups."""
    assert [turn.micro_batch for turn in orders([0, 1, 2, 3] * 2, 6, "1f1b")[0][:7]] == [
        *range(6),
        0,
    ]
    assert orders([0, 1, 0, 1], 5, "1f1b") == orders([0, 1, 0, 1], 5, "gpipe")


def test_sending_delays_the_next_stage() -> None:
    its = scheduled(
        [0, 1],
        orders([0, 1], 1, "1f1b"),
        {(False, 0): 10, (False, 1): 10, (True, 0): 20, (True, 1): 20},
        {0: {1: 5}, 1: {}},
    )
    assert its.ends[Turn(False, 1, 0)] == 25
    assert its.ends[Turn(True, 0, 0)] == 25 + 20 + 5 + 20


def test_a_stage_that_waits_until_it_has_sent() -> None:
    """Forward it sends to the next stage, backward to the one before, and computes nothing."""
    times = {(False, 0): 10, (False, 1): 10, (True, 0): 20, (True, 1): 20}
    turns = orders([0, 1], 2, "1f1b")
    its = scheduled([0, 1], turns, times, {0: {1: 5}, 1: {}}, waits=True)
    assert its.ends[Turn(False, 0, 1)] == 10 + 5 + 10
    # The last stage goes forward and backward, sends 5, and does so again.
    assert its.ends[Turn(True, 1, 1)] == 15 + (10 + 20) + 5 + (10 + 20)
    beside = scheduled([0, 1], turns, times, {0: {1: 5}, 1: {}})
    assert beside.ends[Turn(True, 1, 1)] == 15 + 2 * (10 + 20)


def test_runs_that_do_not_go_round() -> None:
    """All forward first, so that nothing waits for ever."""
    stages = [0, 1, 0]
    times = {(backward, run): 1 for backward in (False, True) for run in range(3)}
    its = scheduled(stages, orders(stages, 3, "1f1b"), times, {0: {1: 0, 2: 0}, 1: {2: 0}, 2: {}})
    assert len(its.ends) == 2 * 3 * 3
