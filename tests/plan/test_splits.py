"""The degrees that deal an operator to devices in equal shares."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexlegion import Model
from flexlegion.graph.graph import Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.strategy.configuration import SPLIT, splits


def convolution(batch_size: int = 64, size: int = 16, filters: int = 32) -> Operator:
    model = Model(batch_size)
    model.conv2d(model.input((size, size, 1)), filters, 1)
    return model.graph.operators[0]


def relu(batch_size: int, channels: int) -> Operator:
    model = Model(batch_size)
    model.relu(model.input((channels,)))
    return model.graph.operators[0]


def dense(batch_size: int, steps: int, inputs: int, units: int) -> Operator:
    model = Model(batch_size)
    model.dense(model.input((steps, inputs)), units)
    return model.graph.operators[0]


def test_two_dimensions() -> None:
    """Of six devices: divisors 1, 2, 3, 6 and the power of two 4; extents 4 and 2 bound them."""
    assert splits(relu(4, 2), 6) == [
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
        (3, 1),
        (3, 2),
        (4, 1),
    ]


def test_reductions() -> None:
    """On 16 devices, the exponents of a dense layer's three or four degrees add up to at most 4."""
    layer = dense(16, 16, 16, 16)
    assert [dim.name for dim in layer.dims] == ["sample", "length", "channel", "in"]
    found = splits(layer, 16)
    assert len(found) == 70
    outputs = splits(layer, 16, SPLIT - {DimKind.REDUCTION})
    assert outputs == [degrees for degrees in found if degrees[-1] == 1]
    assert len(outputs) == 35


def test_one_task() -> None:
    assert splits(convolution(), 1) == [(1,) * 5]


def test_allowed_kinds() -> None:
    conv = convolution()
    whole = (1, 1, 1, 1, 1)
    assert splits(conv, 4, {DimKind.SAMPLE}) == [whole, (2, 1, 1, 1, 1), (4, 1, 1, 1, 1)]
    assert splits(conv, 2, {DimKind.PARAMETER}) == [whole, (1, 1, 1, 2, 1)]
    assert splits(conv, 2, {DimKind.SAMPLE, DimKind.ATTRIBUTE}) == [
        whole,
        (1, 1, 2, 1, 1),
        (1, 2, 1, 1, 1),
        (2, 1, 1, 1, 1),
    ]
    assert splits(dense(4, 2, 3, 2), 3, {DimKind.REDUCTION}) == [
        (1, 1, 1, 1),
        (1, 1, 1, 2),
        (1, 1, 1, 3),
    ]
    assert splits(conv, 64, set()) == [whole]


def test_dimensions_that_cannot_be_split() -> None:
    model = Model(8)
    model.lstm(model.input((4, 6)), 8)
    assert splits(model.graph.operators[0], 8) == [(1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 1, 1)]


@pytest.mark.parametrize(("devices", "count"), [(8, 35), (64, 210), (4096, None)])
def test_how_many(devices: int, count: int | None) -> None:
    """2^a ways: the exponents of four dimensions add up to at most 3: C(7, 4); 6: C(10, 4)."""
    found = splits(convolution(2**12, 2**7, 2**12), devices)
    assert count is None or len(found) == count
    assert len(found) < 20_000


@given(
    extents=st.tuples(*[st.integers(1, 13)] * 2, st.integers(1, 5)), max_tasks=st.integers(1, 30)
)
def test_against_the_definition(extents: tuple[int, int, int], max_tasks: int) -> None:
    batch, size, filters = extents
    operator = convolution(batch, size, filters)
    fair = {d for d in range(1, max_tasks + 1) if max_tasks % d == 0 or d in (1, 2, 4, 8, 16)}
    expected = [
        (*degrees, 1)
        for degrees in product(*(range(1, extent + 1) for extent in operator.output.shape))
        if fair.issuperset(degrees) and math.prod(degrees) <= max_tasks
    ]
    assert splits(operator, max_tasks) == expected
