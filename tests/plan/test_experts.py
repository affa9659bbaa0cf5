"""Operators of mixtures of experts and of margin losses: shapes, dimensions, access, refusals."""

from __future__ import annotations

import math

import pytest
from touched import boxes, dims, last, refusal, weights

from flexlegion import Model
from flexlegion.base.errors import UserError
from flexlegion.objective.losses import ArcFace, CosFace
from flexlegion.transforms.losses import add_loss


def test_experts() -> None:
    """A task has its steps' rows, and the weights and gates of its experts and their units."""
    model = Model(2)
    x, gates = model.input((4, 6), name="x"), model.input((4, 5), name="gates")
    y = model.experts(x, gates, 7, "silu", gated=True, load=2, name="e")
    op = last(model)
    assert y.shape == (2, 4, 6)
    assert dims(op) == "SANRR"
    assert weights(op) == {"up": (5, 7, 6), "down": (5, 6, 7), "gate": (5, 7, 6)}
    found = boxes(op, model, 1, 2, 1, 1, 1)
    assert found["gates"] == [((0, 2), (0, 2), (0, 5)), ((0, 2), (2, 4), (0, 5))]
    assert found["up"] == [((0, 5), (0, 7), (0, 6))] * 2
    found = boxes(op, model, 1, 1, 1, 2, 1)
    assert found["x"] == [((0, 2), (0, 4), (0, 6))] * 2
    assert found["gates"] == [((0, 2), (0, 4), (0, 2)), ((0, 2), (0, 4), (2, 5))]
    assert found["down"] == [((0, 2), (0, 6), (0, 7)), ((2, 5), (0, 6), (0, 7))]
    found = boxes(op, model, 1, 1, 1, 1, 2)
    assert found["gates"] == [((0, 2), (0, 4), (0, 5))] * 2
    assert found["gate"] == [((0, 5), (0, 3), (0, 6)), ((0, 5), (3, 7), (0, 6))]
    assert found["down"] == [((0, 5), (0, 6), (0, 3)), ((0, 5), (0, 6), (3, 7))]
    # Of 8 rows, each goes to 2 experts of three products of 6x7; forward again, but for the last.
    assert op.kind.flops(op.input_shapes) == 8 * 2 * 3 * 2 * 6 * 7
    assert op.kind.backward_flops(op.input_shapes) == 8 * 2 * (2 * 3 + 2) * 2 * 6 * 7
    # Made-up gates choose all five.
    assert op.kind.measured_share(op.input_shapes) == 2 / 5
    assert "gates (sample, ..., expert), but got shapes [2, 4, 6] and [2, 5]" in refusal(
        model.experts, x, model.input((5,)), 7
    )
    assert "relu, gelu or silu, but is 'tanh'" in refusal(model.experts, x, gates, 7, "tanh")
    assert "the load of 5 experts has to be above 0" in refusal(
        model.experts, x, gates, 7, "relu", False, 6
    )


def test_top_k_and_capacity() -> None:
    """Rows are whole for the one, columns for the other."""
    model = Model(2)
    x = model.input((4, 6), name="x")
    assert model.top_k(x, 2).shape == (2, 4, 6)
    assert dims(last(model)) == "SAN"
    model.capacity(x, 3)
    op = last(model)
    assert dims(op) == "NNA"
    assert boxes(op, model, 1, 1, 2)["x"] == [((0, 2), (0, 4), (0, 3)), ((0, 2), (0, 4), (3, 6))]
    assert "is to take 7 of shape [2, 4, 6]" in refusal(model.top_k, x, 7)
    assert "a capacity is at least 1" in refusal(model.capacity, x, 0)


def test_margin_softmax() -> None:
    """A split of the classes splits the kernel, and every task has all labels of its samples."""
    model = Model(4)
    cosines = model.cosine(model.input((3,), name="x"), 6, name="c")
    op = last(model)
    assert dims(op) == "SP"
    assert weights(op) == {"kernel": (6, 3)}
    assert boxes(op, model, 1, 2)["kernel"] == [((0, 3), (0, 3)), ((3, 6), (0, 3))]
    for loss in ("arcface", CosFace(scale=30.0)):
        graph = add_loss(model.graph, cosines, loss)
        margin, own_logit, statistics, _ = graph.operators[-4:]
        assert margin.kind.type == "angular_margin"
        assert dims(margin) == "SA"
        assert [t.name for t in margin.inputs] == ["c.output", "labels"]
        for reader in (own_logit, statistics):  # split by the classes, too
            assert reader.inputs[:2] == [margin.output, margin.inputs[1]]
            assert dims(reader) == "SR"
    for wrong in (
        lambda: ArcFace(scale=0.0),
        lambda: ArcFace(margin=math.pi),
        lambda: CosFace(margin=-0.1),
    ):
        with pytest.raises(UserError, match=r"face's (scale|margin) has to be"):
            wrong()
