"""Operators of shape, and those of windows: shapes, SOAP dimensions, weights, access maps."""

from __future__ import annotations

import pytest
from touched import boxes, dims, last, refusal, weights

from flexlegion import Model
from flexlegion.graph.operator_type import DimKind
from flexlegion.plan.plan import Box


@pytest.mark.parametrize(
    ("before", "after", "kinds", "degrees", "read"),
    [
        # 6 = 2 x 3: row r of the output is [3 r, 3 r + 3).
        ((6,), (2, 3), "SAN", (1, 2, 1), [((0, 3),), ((3, 6),)]),
        # 2 x 3 = 6: outputs [0, 2), [2, 4), [4, 6) lie in rows 0, 0 and 1, and 1.
        ((2, 3), (6,), "SA", (1, 3), [((0, 1), (0, 3)), ((0, 2), (0, 3)), ((1, 2), (0, 3))]),
        # 4 x 3 = 6 x 2: rows [0, 3) of 2 are the first two rows of 3.
        ((4, 3), (6, 2), "SAN", (1, 2, 1), [((0, 2), (0, 3)), ((2, 4), (0, 3))]),
        # Extents of 1 come and go, and equal extents stay.
        ((4, 1, 6), (4, 6), "SAA", (1, 2, 2), [((0, 2), (0, 1), (0, 3))]),
        ((4, 6), (1, 4, 2, 3), "SNAAN", (1, 1, 2, 2, 1), [((0, 2), (0, 3))]),
    ],
)
def test_reshape(
    before: tuple[int, ...],
    after: tuple[int, ...],
    kinds: str,
    degrees: tuple[int, ...],
    read: list[Box],
) -> None:
    model = Model(2)
    x = model.reshape(model.input(before, name="x"), after)
    op = last(model)
    assert x.shape == (2, *after)
    assert dims(op) == kinds
    found = boxes(op, model, *degrees)["x"]
    assert [box[1:] for box in found[: len(read)]] == read
    assert all(box[0] == (0, 2) for box in found)


def test_reshape_refuses() -> None:
    model = Model(2)
    x = model.input((2, 3))
    assert "as many elements as [7] has, 7, but got shape [2, 3]" in refusal(model.reshape, x, (7,))
    for shape in ((), (1,) * 5, (-1, 6), (0,)):
        assert "1 to 4 positive extents" in refusal(model.reshape, x, shape)


def test_transpose() -> None:
    model = Model(2)
    x = model.input((3, 4, 6), name="x")
    assert model.transpose(x, (0, 3, 1, 2)).shape == (2, 6, 3, 4)
    op = last(model)
    assert boxes(op, model, 1, 2, 1, 2)["x"] == [
        ((0, 2), (0, 3), (0, 2), (0, 3)),
        ((0, 2), (0, 3), (2, 4), (0, 3)),
        ((0, 2), (0, 3), (0, 2), (3, 6)),
        ((0, 2), (0, 3), (2, 4), (3, 6)),
    ]
    assert op.kind.attributes() == {"permutation": "0,3,1,2"}
    for wrong in ((1, 0, 2, 3), (0, 1), (0, 1, 1, 2)):
        assert "begins with 0, the sample" in refusal(model.transpose, x, wrong)


def test_rearrange() -> None:
    """An output's dimension that is the major axis of an input's can be split."""
    model = Model(2)
    x = model.input((4, 3, 6), name="x")
    assert model.rearrange(x, (2, 2, 3, 6), (0, 2, 3, 1), (2, 3, 12)).shape == (2, 2, 3, 12)
    op = last(model)
    assert [dim.kind is DimKind.NONE for dim in op.dims] == [False, False, False, True]
    assert boxes(op, model, 2, 2, 1, 1)["x"] == [
        ((0, 1), (0, 2), (0, 3), (0, 6)),
        ((0, 1), (2, 4), (0, 3), (0, 6)),
        ((1, 2), (0, 2), (0, 3), (0, 6)),
        ((1, 2), (2, 4), (0, 3), (0, 6)),
    ]
    assert boxes(op, model, 1, 1, 3, 1)["x"] == [
        ((0, 2), (0, 4), (j, j + 1), (0, 6)) for j in range(3)
    ]
    assert op.kind.attributes() == {"extents": "2,2,3,6", "order": "0,2,3,1", "shape": "2,3,12"}
    windows = model.input((4, 4, 2), name="windows")
    model.rearrange(windows, (2, 2, 2, 2, 2), (0, 2, 1, 3, 4), (4, 4, 2))
    split = [dim.kind is not DimKind.NONE for dim in last(model).dims]
    assert split == [True, False, False, True]
    wrong = {
        "order of their numbers": ((2, 2, 3, 6), (0, 1, 2), (4, 18)),
        "extents of at least 2": ((4, 1, 3, 6), (0, 1, 2, 3), (4, 18)),
        "its input's, [4, 3, 6], are not made up of [2, 6, 6]": ((2, 6, 6), (0, 1, 2), (72,)),
        "its output's, [8, 9], are not made up of [4, 3, 6]": ((4, 3, 6), (0, 1, 2), (8, 9)),
        "1 to 4 extents": ((4, 3, 6), (0, 1, 2), ()),
    }
    for sentence, (extents, order, shape) in wrong.items():
        assert sentence in refusal(model.rearrange, x, extents, order, shape)


def test_split() -> None:
    model = Model(2)
    x = model.input((7, 3), name="x")
    parts = model.split(x, (2, 5), axis=1, name="s")
    assert [(p.name, p.shape) for p in parts] == [
        ("s.0.output", (2, 2, 3)),
        ("s.1.output", (2, 5, 3)),
    ]
    assert boxes(last(model), model, 1, 2, 1)["x"] == [
        ((0, 2), (2, 4), (0, 3)),
        ((0, 2), (4, 7), (0, 3)),
    ]
    assert [p.shape for p in model.split(x, (1, 1, 1))] == [(2, 7, 1)] * 3
    model.split(x, (3,))
    for sizes in ((2, 2), (), (8, -1)):
        assert "positive sizes that add up to 7" in refusal(model.split, x, sizes, axis=1)
    assert "axis 1 to 2 of its input, but got 0" in refusal(model.split, x, (2,), axis=0)


def test_multiply() -> None:
    model = Model(2)
    x, y = model.input((3,)), model.input((4,))
    assert model.multiply([x, x]).shape == (2, 3)
    assert dims(last(model)) == "SA"
    assert "cannot be broadcast to one another" in refusal(model.multiply, [x, y])
    assert "at least 2 inputs, but got 1" in refusal(model.multiply, [x])


def test_grouped_conv2d() -> None:
    """3 groups of 2 channels and 4 filters: an access map cannot tell which a range touches."""
    model = Model(2)
    x = model.input((5, 5, 6), name="x")
    assert model.conv2d(x, 12, 3, groups=3).shape == (2, 3, 3, 12)
    op = last(model)
    assert weights(op) == {"kernel": (12, 3, 3, 2), "bias": (12,)}
    assert op.kind.flops(op.input_shapes) == 2 * 3 * 3 * 12 * (2 * 9 * 2 + 1)
    assert boxes(op, model, 1, 1, 1, 2)["x"] == [((0, 2), (0, 5), (0, 5), (0, 6))] * 2
    for groups in (4, 12):
        assert f"6 channels cannot be cut into {groups} groups" in refusal(
            model.conv2d, x, 12, 3, groups=groups
        )
    assert "8 filters cannot be cut into 3 groups" in refusal(model.conv2d, x, 8, 3, groups=3)
    assert "groups" in refusal(model.conv2d, x, 12, 3, groups=0)


@pytest.mark.parametrize(
    ("channels", "filters", "groups", "read"),
    [
        (6, 6, 6, [(0, 1), (1, 3), (3, 4), (4, 6)]),  # depthwise
        (3, 9, 3, [(0, 1), (0, 2), (1, 2), (2, 3)]),  # filters 0-1, 2-3, 4-5, 6-8
        (8, 4, 4, [(0, 2), (2, 4), (4, 6), (6, 8)]),
    ],
)
def test_filters_read_the_channels_of_their_groups(
    channels: int, filters: int, groups: int, read: list[tuple[int, int]]
) -> None:
    model = Model(2)
    model.conv2d(model.input((5, 5, channels), name="x"), filters, 3, groups=groups)
    assert [box[3] for box in boxes(last(model), model, 1, 1, 1, 4)["x"]] == read


# One-dimensional images (FlexFlow, Table 1)


def test_conv1d() -> None:
    """Windows of 3 with stride 2 and padding 1 over 8: 4 positions; two of them need [0, 4)."""
    model = Model(2)
    x = model.conv1d(model.input((8, 3), name="x"), 6, 3, stride=2, padding=1, name="c")
    op = last(model)
    assert x.shape == (2, 4, 6)
    assert dims(op) == "SAP"
    assert weights(op) == {"kernel": (6, 3, 3), "bias": (6,)}
    found = boxes(op, model, 1, 2, 2)
    assert [box[1] for box in found["x"]] == [(0, 4), (0, 4), (3, 8), (3, 8)]
    assert found["kernel"][1] == ((3, 6), (0, 3), (0, 3))
    assert op.kind.flops(op.input_shapes) == 2 * 4 * 6 * (2 * 9 + 1)
    assert model.conv1d(x, 5, 3, padding="same", activation="gelu").shape == (2, 4, 5)
    assert "a kernel of 9 does not fit" in refusal(model.conv1d, x, 5, 9)


def test_pool1d() -> None:
    model = Model(2)
    x = model.input((8, 3), name="x")
    assert model.pool1d(x, 2).shape == (2, 4, 3)
    op = last(model)
    assert dims(op) == "SAA"
    assert boxes(op, model, 1, 2, 1)["x"][1] == ((0, 2), (4, 8), (0, 3))
    assert "unknown kind of pooling" in refusal(model.pool1d, x, 2, kind="min")
