"""Made-up data: shapes, types and ranges follow from the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flexlegion import Model, UserError
from flexlegion.data.synthetic import made_up
from flexlegion.transforms.losses import add_loss, add_losses
from flexlegion.zoo import ZOO, build

# Of the networks whose own sizes would make large arrays.
SMALL: dict[str, dict[str, Any]] = {
    "alexnet": {"input_shape": (64, 64, 3)},
    "inception_v3": {"input_shape": (75, 75, 3)},
    "resnet101": {"input_shape": (32, 32, 3)},
    "resnet152": {"input_shape": (32, 32, 3)},
    "resnet50": {"input_shape": (32, 32, 3)},
    "vgg16": {"input_shape": (32, 32, 3)},
}


def trained(model: Model, loss: str) -> Any:
    return add_loss(model.graph, model.graph.operators[-1].output, loss)


@pytest.mark.parametrize("name", ZOO)
def test_fits_every_network(name: str) -> None:
    entry = ZOO[name]
    sizes = SMALL.get(name, {})
    graph = trained(build(name, 2, **sizes), entry.loss)
    x, y = made_up(graph, 6, seed=1)
    assert y is not None
    *inputs, labels = graph.inputs
    assert list(x) == [tensor.name for tensor in inputs]
    assert list(y) == ["labels"]
    for tensor, array in ((labels, y["labels"]), *((t, x[t.name]) for t in inputs)):
        assert array.shape == (6, *tensor.shape[1:])
        assert array.dtype == tensor.dtype
    sizes = entry.sizes_with(sizes)
    below = sizes.get("classes", sizes.get("vocabulary", 2))  # of clicks, yes or no
    assert 0 <= y["labels"].min() <= y["labels"].max() < below
    if "vocabulary" in sizes:
        for tokens in x.values():
            assert 0 <= tokens.min() < tokens.max() < sizes["vocabulary"]
    (again, _), (other, _) = made_up(graph, 6, seed=1), made_up(graph, 6, seed=2)
    for key, array in x.items():
        assert np.array_equal(array, again[key])
        assert not np.array_equal(array, other[key])


def labels_of(model: Model, loss: str, samples: int) -> np.ndarray:
    _, y = made_up(trained(model, loss), samples)
    assert y is not None
    return y["labels"]


def test_images_and_classes() -> None:
    model = Model(4)
    x = model.flatten(model.input((40, 50, 1), name="image"))
    model.dense(x, 4)
    images = made_up(trained(model, "mean_squared_error"), 100)[0]["image"]
    assert images.mean() == pytest.approx(0, abs=0.01)
    assert images.std() == pytest.approx(1, abs=0.01)
    assert set(labels_of(model, "sparse_categorical_crossentropy", 100).tolist()) == {0, 1, 2, 3}
    shares = labels_of(model, "categorical_crossentropy", 100)
    assert shares.shape == (100, 4)
    assert np.array_equal(np.sort(shares, axis=1), [[0, 0, 0, 1]] * 100)
    assert np.all(shares.any(axis=0))
    assert set(labels_of(model, "binary_crossentropy", 100).ravel().tolist()) == {0.0, 1.0}
    assert labels_of(model, "mean_squared_error", 1000).std() == pytest.approx(1, abs=0.05)


def test_several_inputs_outputs_and_tables() -> None:
    """Every token lies in the smallest of the tables that are looked up with it."""
    model = Model(4)
    words, user = model.input((6,), "int32", name="words"), model.input((1,), "int32", name="user")
    numbers = model.input((3,), name="numbers")
    parts = [
        model.flatten(model.embedding(words, 50, 4, start=0, steps=4)),
        model.flatten(model.embedding(words, 7, 4, start=2, steps=2)),
        model.flatten(model.embedding(user, 5, 4)),
        numbers,
    ]
    x = model.concat(parts, axis=1)
    outputs = [model.dense(x, 1, name="rating"), model.dense(x, 3, name="kind")]
    losses = ["mean_squared_error", "sparse_categorical_crossentropy"]
    data, labels = made_up(add_losses(model.graph, outputs, losses), 500)
    assert list(data) == ["words", "user", "numbers"]
    assert data["words"][:, :2].max() == 49
    assert data["words"][:, 2:4].max() == 6
    assert data["words"][:, 4:].max() == 1  # nobody reads these
    assert set(data["user"].ravel().tolist()) == set(range(5))
    assert data["numbers"].dtype == np.float32
    assert labels is not None
    assert list(labels) == ["rating", "kind"]
    assert labels["rating"].shape == (500, 1)
    assert labels["rating"].min() < 0
    assert set(labels["kind"].tolist()) == {0, 1, 2}


def test_no_samples() -> None:
    with pytest.raises(UserError, match="the number of samples has to be at least 1, but is 0"):
        made_up(trained(build("mlp", 2), "mean_squared_error"), 0)
