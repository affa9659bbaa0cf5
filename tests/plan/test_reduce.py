"""Reductions and the normalisations beside batch normalisation: shapes, dimensions, access maps."""

from __future__ import annotations

from touched import boxes, dims, last, reads, refusal, weights

from flexlegion import Model


def test_reduce() -> None:
    model = Model(4)
    x = model.input((5, 6, 8), name="x")
    assert model.reduce(x, "mean", (1, -1)).shape == (4, 6)
    op = last(model)
    assert (dims(op), op.kind.axes) == ("SARR", (1, 3))
    assert reads(op, model, 2, 2)["x"][1] == ((0, 2), (0, 5), (3, 6), (0, 8))
    assert boxes(op, model, 2, 2)["output"][1] == ((0, 2), (3, 6))
    assert op.kind.flops(op.input_shapes) == 4 * 5 * 6 * 8
    assert not op.kind.input_access(op.input_shapes)[0].saved
    assert model.reduce(x, "max", 2, keepdims=True).shape == (4, 5, 1, 8)
    op = last(model)
    output = op.kind.output_access(op.input_shapes)[0]
    assert (dims(op), output.saved, output.combine) == ("SAAAR", True, "max")
    assert model.reduce(x, "sum", (1, 2, 3)).shape == (4,)
    assert "takes dimensions 1 to 3 of its input" in refusal(model.reduce, x, "sum", (0, 1))
    assert "but got []" in refusal(model.reduce, x, "sum", ())
    assert "but got [4]" in refusal(model.reduce, x, "sum", 4)
    assert "unknown reduction 'min'" in refusal(model.reduce, x, "min", 1)


def test_layer_norm_without_weights() -> None:
    model = Model(4)
    x = model.input((5, 8))
    model.rms_norm(x)
    assert weights(last(model)) == {"gamma": (8,)}
    assert not last(model).kind.center
    model.layer_norm(x, use_scale=False)
    assert weights(last(model)) == {"beta": (8,)}
    model.rms_norm(x, use_scale=False)
    assert not last(model).weights


def test_group_norm() -> None:
    """Groups of several channels are not split; channels that are groups are."""
    model = Model(4)
    x = model.input((5, 6, 8), name="x")
    assert model.group_norm(x, 4, name="g").shape == x.shape
    assert dims(last(model)) == "SNNN"
    assert weights(last(model)) == {"gamma": (8,), "beta": (8,)}
    model.group_norm(x, 8, use_bias=False, name="i")
    assert dims(last(model)) == "SNNP"
    found = boxes(last(model), model, 2, 1, 1, 2)
    assert found["x"][1] == ((0, 2), (0, 5), (0, 6), (4, 8))
    assert found["gamma"][1] == ((4, 8),)
    assert "8 channels cannot be cut into 3 groups" in refusal(model.group_norm, x, 3)
    assert "groups has to be at least 1" in refusal(model.group_norm, x, 0)


def test_drop_path() -> None:
    model = Model(4)
    assert model.drop_path(model.input((5, 8)), 0.25).shape == (4, 5, 8)
    assert (dims(last(model)), last(model).kind.type) == ("SAA", "drop_path")
    assert "dropout rate has to be" in refusal(model.drop_path, model.input((3,)), 1.0)
