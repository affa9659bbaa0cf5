"""Initial weights: functions of seed and name, with the moments that the papers give."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest

from flexlegion import Model, UserError
from flexlegion.graph.initializers import (
    Constant,
    Given,
    GlorotUniform,
    HeNormal,
    Initializer,
    Normal,
    Zeros,
    initial_weights,
    initializer,
)
from flexlegion.zoo import build

DRAWN = [Normal(), GlorotUniform(), HeNormal()]


@pytest.mark.parametrize("drawn", DRAWN)
def test_reproducible_by_seed_and_name(drawn: Initializer) -> None:
    first = drawn((5, 7), "a.kernel", 0)
    assert first.dtype == np.float32
    assert first.shape == (5, 7)
    np.testing.assert_array_equal(drawn((5, 7), "a.kernel", 0), first)
    assert (drawn((5, 7), "b.kernel", 0) != first).any()
    assert (drawn((5, 7), "a.kernel", 1) != first).any()


@pytest.mark.parametrize("drawn", DRAWN)
def test_own_seed(drawn: Initializer) -> None:
    """A seed of its own replaces the model's seed and the name."""
    own = dataclasses.replace(drawn, seed=3)
    np.testing.assert_array_equal(own((4, 4), "a", 0), own((4, 4), "b", 1))
    assert (dataclasses.replace(drawn, seed=4)((4, 4), "a", 0) != own((4, 4), "a", 0)).any()


def test_constants() -> None:
    assert (Zeros()((3, 2), "w", 0) == 0).all()
    assert (Constant()((3, 2), "w", 0) == 1).all()
    assert (Constant(value=-2.5)((3, 2), "w", 0) == -2.5).all()


def test_normal() -> None:
    values = Normal(stddev=0.2)((100, 100), "w", 0)
    assert abs(values.mean()) < 0.01
    assert values.std() == pytest.approx(0.2, rel=0.05)


# A dense kernel (out, in) has fans in and out; a convolution's (out, kh, kw, in) has them times the
# window; a vector counts its length for both.
@pytest.mark.parametrize(
    ("shape", "fan_in", "fan_out"),
    [((80, 120), 120, 80), ((16, 5, 3, 20), 300, 240), ((9000,), 9000, 9000)],
)
def test_fans(shape: tuple[int, ...], fan_in: int, fan_out: int) -> None:
    bound = math.sqrt(6 / (fan_in + fan_out))
    values = GlorotUniform()(shape, "w", 0)
    assert np.abs(values).max() <= bound
    assert np.abs(values).max() > 0.98 * bound
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert HeNormal()(shape, "w", 0).std() == pytest.approx(math.sqrt(2 / fan_in), rel=0.05)


def test_names() -> None:
    assert initializer("glorot_uniform") == GlorotUniform()
    assert initializer("he_normal") == HeNormal()
    assert initializer("normal") == Normal()
    assert initializer("zeros") == Zeros()
    assert (initializer("ones")((2,), "w", 0) == 1).all()
    own = Normal(seed=1, stddev=2)
    assert initializer(own) is own
    with pytest.raises(
        UserError, match=r"unknown initializer 'xavier' \(did you mean 'glorot_uniform'\?\); choose"
    ):
        initializer("xavier")


def test_of_a_model() -> None:
    weights = initial_weights(build("mlp", 4, (6, 6, 1), 3, seed=5).graph, 5)
    assert {name: value.shape for name, value in weights.items()} == {
        "hidden1.kernel": (512, 36),
        "hidden1.bias": (512,),
        "hidden2.kernel": (256, 512),
        "hidden2.bias": (256,),
        "output.kernel": (3, 256),
        "output.bias": (3,),
    }
    assert (weights["output.bias"] == 0).all()


def test_independent_of_batch_and_other_layers() -> None:
    """Nothing but seed, name and shape matters: neither the batch nor what else the model has."""
    small, large = Model(1), Model(64)
    small.dense(small.input((4,)), 3, name="fc")
    x = large.dense(large.input((4,)), 4, name="before")
    large.dense(x, 3, name="fc")
    first, second = (initial_weights(model.graph, 7) for model in (small, large))
    np.testing.assert_array_equal(first["fc.kernel"], second["fc.kernel"])


def test_layers_of_the_same_shape_differ() -> None:
    model = Model(2)
    x = model.dense(model.input((4,)), 4, name="a")
    model.dense(x, 4, name="b")
    weights = initial_weights(model.graph, 0)
    assert (weights["a.kernel"] != weights["b.kernel"]).any()


def test_of_layers() -> None:
    model = Model(2)
    x = model.conv2d(
        model.input((4, 4, 1)), 2, 3, kernel_initializer="ones", bias_initializer="normal", name="c"
    )
    model.dense(model.flatten(x), 2, kernel_initializer=Constant(value=3.0), name="d")
    weights = initial_weights(model.graph, 0)
    assert (weights["c.kernel"] == 1).all()
    assert (weights["c.bias"] != 0).all()
    assert (weights["d.kernel"] == 3).all()
    with pytest.raises(UserError, match="unknown initializer 'zero'"):
        model.dense(x, 2, bias_initializer="zero")


def test_given_values() -> None:
    """An array is an initializer; its shape is checked when the layer is added."""
    kernel = np.arange(6.0).reshape(2, 3)
    model = Model(4, seed=5)
    x = model.dense(model.input((3,)), 2, kernel_initializer=kernel, name="d")
    values = initial_weights(model.graph, 5)
    assert values["d.kernel"].dtype == np.float32
    np.testing.assert_array_equal(values["d.kernel"], kernel)
    assert isinstance(initializer(kernel), Given)
    with pytest.raises(UserError, match=re.escape("'e.kernel' has shape [2, 2], but the values")):
        model.dense(x, 2, kernel_initializer=kernel, name="e")
    assert [op.name for op in model.graph.operators] == ["d"]


def test_initializers_do_not_tell_operators_apart() -> None:
    """Two layers that begin with other values take as long."""
    model = Model(4)
    x = model.dense(model.input((3,)), 3, kernel_initializer=np.ones((3, 3)))
    model.dense(x, 3, kernel_initializer="zeros")
    first, second = (op.kind for op in model.graph.operators)
    assert first == second
    assert hash(first) == hash(second)
