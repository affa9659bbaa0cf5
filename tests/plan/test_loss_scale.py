"""Dynamic loss scaling, by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flexlegion.training.loss_scale import FIRST, ITERATIONS, LARGEST, LEAST, LossScale


def test_an_overflow_halves_it_once() -> None:
    """Iterations that were issued before it was known do not count."""
    scale = LossScale()
    for _ in range(3):
        scale.finished(FIRST, overflowed=True)
    assert scale.value == FIRST / 2
    scale.finished(FIRST / 2, overflowed=True)
    assert scale.value == FIRST / 4


def test_it_is_doubled_after_a_long_time_without() -> None:
    scale = LossScale()
    for _ in range(ITERATIONS - 1):
        scale.finished(FIRST, overflowed=False)
    assert scale.value == FIRST
    scale.finished(FIRST, overflowed=True)
    for _ in range(ITERATIONS):
        scale.finished(FIRST / 2, overflowed=False)
    assert scale == LossScale(FIRST, 0)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, ITERATIONS)), max_size=60))
def test_it_is_a_power_of_two_within_bounds(what: list[tuple[bool, int]]) -> None:
    scale = LossScale()
    for overflowed, times in what:
        for _ in range(1 if overflowed else times):
            scale.finished(scale.value, overflowed)
        mantissa = scale.value.hex().split("p")[0]
        assert mantissa == "0x1.0000000000000"
        assert LEAST <= scale.value <= LARGEST
        assert scale.exhausted == (scale.value == LEAST)
