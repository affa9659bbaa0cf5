"""Normalisations: shapes, SOAP dimensions, weights, access maps.

Rectangles are those of the native plan's forward launch, derived by hand in the cases.
"""

from __future__ import annotations

import pytest
from touched import DEVICES, boxes, dims, last, reads, refusal, weights

from flexlegion import Model, ParallelConfig
from flexlegion.ops.normalization import BatchNorm, BatchNormMoments


def test_batch_norm() -> None:
    """The moments read all samples' statistics; tasks of any split read those of their channels."""
    model = Model(4)
    x = model.batch_norm(model.input((5, 6, 8), name="x"), "relu", name="b")
    statistics, moments, norm = model.graph.operators
    assert x.shape == (4, 5, 6, 8)
    assert (statistics.name, statistics.output.shape) == ("b.statistics", (4, 2, 8))
    assert (moments.name, moments.output.shape) == ("b.moments", (1, 2, 8))
    assert (dims(statistics), dims(moments), dims(norm)) == ("SNA", "NNA", "SAAP")
    assert weights(norm) == {"gamma": (8,), "beta": (8,)}
    assert not statistics.weights
    assert weights(moments) == {"running_mean": (8,), "running_variance": (8,)}
    assert (moments.kind.positions, moments.kind.momentum) == (30, 0.1)
    assert model.graph.trained_weights == norm.weights
    assert boxes(statistics, model, 2, 1, 2)["x"] == [
        ((0, 2), (0, 5), (0, 6), (0, 4)),
        ((0, 2), (0, 5), (0, 6), (4, 8)),
        ((2, 4), (0, 5), (0, 6), (0, 4)),
        ((2, 4), (0, 5), (0, 6), (4, 8)),
    ]
    assert reads(moments, model, 1, 1, 2) == {
        "b.statistics.output": [((0, 4), (0, 2), (0, 4)), ((0, 4), (0, 2), (4, 8))],
    }
    found = boxes(moments, model, 1, 1, 2)
    assert found["running_mean"] == [((0, 4),), ((4, 8),)]
    assert found["running_variance"] == [((0, 4),), ((4, 8),)]
    found = reads(norm, model, 2, 1, 1, 2)
    assert found["x"][1] == ((0, 2), (0, 5), (0, 6), (4, 8))
    assert found["b.gamma"] == [((0, 4),), ((4, 8),)] * 2
    assert found["b.moments.output"] == [((0, 1), (0, 2), (0, 4)), ((0, 1), (0, 2), (4, 8))] * 2
    # 4 x 30 x 8 elements: 4 operations for the statistics, 5 to normalise with ReLU. Of 4 samples
    # and 8 channels, 5 for the moments.
    flops = [op.kind.flops(op.input_shapes) for op in (statistics, moments, norm)]
    assert flops == [4 * 960, 5 * 32, 5 * 960]
    assert model.batch_norm(model.input((7,))).shape == (4, 7)


def test_batch_norm_with_residual() -> None:
    """A task reads its own tile of the residual, in the forward pass alone."""
    model = Model(4)
    x, residual = model.input((5, 6, 8), name="x"), model.input((5, 6, 8), name="r")
    x = model.batch_norm(x, "relu", name="b", residual=residual)
    assert x.shape == (4, 5, 6, 8)
    norm = last(model)
    assert [tensor.name for tensor in norm.inputs] == ["x", "b.moments.output", "r"]
    assert (dims(norm), weights(norm)) == ("SAAP", {"gamma": (8,), "beta": (8,)})
    found = reads(norm, model, 2, 1, 1, 2)
    assert found["r"] == found["x"]
    assert found["r"][1] == ((0, 2), (0, 5), (0, 6), (4, 8))
    access = norm.kind.input_access(norm.input_shapes)
    assert [a.saved for a in access] == [True, True, False]
    # Of each of 4 x 30 x 8 elements, 4 operations to normalise, one to add, one for ReLU; backward
    # twice what there is without the residual.
    assert norm.kind.flops(norm.input_shapes) == 6 * 960
    assert norm.kind.backward_flops(norm.input_shapes) == 2 * 5 * 960


@pytest.mark.parametrize("activation", ["relu", "relu6", "silu", "hardswish"])
def test_what_an_activation_needs(activation: str) -> None:
    """Its backward pass computes from x and beta what went into it, and reads no output."""
    model = Model(4)
    model.batch_norm(model.input((5, 6, 8)), activation)
    norm = last(model)
    beta = norm.kind.weight_access(norm.input_shapes)[1]
    output = norm.kind.output_access(norm.input_shapes)[0]
    assert (beta.saved, output.saved) == (True, False)


def test_batch_norm_refuses() -> None:
    model = Model(4)
    x = model.batch_norm(model.input((5, 6, 8), name="x"), "relu", name="b")
    statistics, moments, _ = model.graph.operators
    for degrees in ((2, 1, 1), (1, 2, 1)):
        config = ParallelConfig(degrees, ("cpu:0", "cpu:1")).filled(moments, "s.json")
        assert "it cannot be split" in refusal(config.check, moments, DEVICES, "s.json")
    assert refusal(BatchNormMoments(30).output_shape, [x.shape]) == (
        "batch_norm_moments takes statistics of shape (n, 2, c), but got shape [4, 5, 6, 8]"
    )
    assert refusal(BatchNorm().output_shape, [x.shape, statistics.output.shape]) == (
        "batch_norm of shape [4, 5, 6, 8] takes moments of shape [1, 2, 8], but got [4, 2, 8]"
    )
    other = model.input((5, 6, 4))
    names = [op.name for op in model.graph.operators]
    assert refusal(model.batch_norm, x, residual=other) == (
        "batch_norm of shape [4, 5, 6, 8] takes one residual of that shape, but got [4, 5, 6, 4]"
    )
    assert "takes at least 2 dimensions" in refusal(model.batch_norm, model.input(()))
    assert [op.name for op in model.graph.operators] == names  # none of the three was added
    assert refusal(model.batch_norm, x, "tanh") == (
        "batch_norm's activation is None or one of relu, relu6, silu, hardswish, but is 'tanh'"
    )
    assert refusal(model.batch_norm, x, "silu", residual=x) == (
        "batch_norm with a residual ends with relu or nothing, but not silu"
    )
    assert "epsilon has to be above 0" in refusal(model.batch_norm, x, epsilon=0.0)
    assert refusal(model.batch_norm, x, momentum=1.5) == (
        "batch_norm's momentum has to be 0 to 1, but is 1.5"
    )


def test_layer_norm() -> None:
    model = Model(4)
    assert model.layer_norm(model.input((5, 8), name="x")).shape == (4, 5, 8)
    op = last(model)
    assert dims(op) == "SAN"
    assert weights(op) == {"gamma": (8,), "beta": (8,)}
    assert boxes(op, model, 2, 2, 1)["x"][1] == ((0, 2), (2, 5), (0, 8))
    assert "at least 2 dimensions" in refusal(model.layer_norm, model.input(()))
