"""Devices as a mesh of prime axes, and what a configuration divides along them."""

from __future__ import annotations

from math import prod
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from flexlegion.spmd.axes import Axes, Division, joined

DEVICES = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16])


def config_of(division: Division, rank: int) -> tuple[tuple[int, ...], list[int]]:
    """Degrees, and a device for each task, the first of those that repeat it."""
    axes = division.axes
    degrees = tuple(division.parts(d) for d in range(rank))
    devices = {}
    for device in reversed(range(axes.devices)):
        place = axes.digits(device)
        task = 0
        for d in range(rank):
            task = task * degrees[d] + division.part(d, place)
        devices[task] = device
    return degrees, [devices[task] for task in range(prod(degrees))]


@st.composite
def divisions(draw: st.DrawFn) -> Division:
    axes = Axes.prime(draw(DEVICES))
    dims = st.none() | st.integers(0, 2)
    return Division(axes, tuple(draw(dims) for _ in axes.sizes))


def test_axes_are_prime() -> None:
    assert Axes.prime(12).sizes == (2, 2, 3)
    assert Axes.prime(1).sizes == (1,)
    assert Axes.prime(12).digits(7) == (1, 0, 1)


@given(divisions())
def test_a_division_is_found_again(division: Division) -> None:
    degrees, devices = config_of(division, 3)
    found = division.axes.divided(degrees, devices)
    assert found is not None
    for axis, size in enumerate(division.axes.sizes):
        assert size == 1 or found.dims[axis] == division.dims[axis]


@given(DEVICES, st.lists(st.integers(1, 4), min_size=1, max_size=3), st.randoms())
def test_what_makes_no_grid_is_not_found(devices: int, degrees: list[int], random: Random) -> None:
    axes = Axes.prime(devices)
    chosen = [random.randrange(devices) for _ in range(prod(degrees))]
    found = axes.divided(degrees, chosen)
    if found is not None:  # then each task's device has its part
        for task, device in enumerate(chosen):
            mine, left = [], task
            for degree in reversed(degrees):
                left, digit = divmod(left, degree)
                mine.append(digit)
            parts = [found.part(d, axes.digits(device)) for d in range(len(degrees))]
            assert parts == mine[::-1]
        assert len(set(chosen)) == len(chosen)


@given(st.lists(divisions(), min_size=1, max_size=3))
def test_joined_axes_divide_the_same(several: list[Division]) -> None:
    axes = several[0].axes
    its = {str(i): d for i, d in enumerate(several) if d.axes == axes}
    fewer, divisions_ = joined(its, axes)
    assert fewer.devices == axes.devices
    for name, division in its.items():
        for device in range(axes.devices):
            for d in range(3):
                before = division.part(d, axes.digits(device))
                assert divisions_[name].part(d, fewer.digits(device)) == before


def test_neighbours_that_go_together_are_one_axis() -> None:
    axes = Axes.prime(8)
    fewer, _ = joined({"a": Division(axes, (0, 0, 1)), "b": Division(axes, (0, 0, None))}, axes)
    assert fewer.sizes == (4, 2)


def test_ascending() -> None:
    axes = Axes.prime(4)
    found = axes.ascending((2, 1, 2))
    assert found is not None
    assert found.dims == (0, 2)
    few = axes.ascending((1, 2))
    assert few is not None
    assert few.dims == (None, 1)
    assert few.repeats
    assert axes.ascending((3,)) is None
    assert axes.ascending((8,)) is None
