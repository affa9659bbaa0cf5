"""Arrays of an .npz file by the names of a model's inputs and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flexlegion import Model, UserError
from flexlegion.data.named import load_named
from flexlegion.graph.graph import Graph
from flexlegion.transforms.losses import add_losses


def graph(outputs: int = 1, inputs: int = 1) -> Graph:
    """Inputs a, b, ...; outputs out0, out1, ..."""
    model = Model(4)
    tensors = [model.input((3,), name=name) for name in "abc"[:inputs]]
    x = model.concat(tensors, axis=1) if inputs > 1 else tensors[0]
    ends = [model.dense(x, 2, name=f"out{i}") for i in range(outputs)]
    return add_losses(model.graph, ends, "mean_squared_error")


def write(path: Path, **arrays: Any) -> str:
    np.savez(path / "data.npz", **arrays)
    return str(path / "data.npz")


X, Y = np.arange(30.0).reshape(10, 3), np.arange(20.0).reshape(10, 2)


def test_one_input_and_output(tmp_path: Path) -> None:
    for names in ({"x": X, "y": Y}, {"a": X, "labels": Y}):
        train, test = load_named(write(tmp_path, **names), graph()).divided(0.2, 0)
        assert (train.samples, test.samples) == (8, 2)
        assert train.y is not None
        assert test.y is not None
        rows = np.concatenate([train.x["a"], test.x["a"]])
        assert sorted(rows[:, 0]) == sorted(X[:, 0])
        labels = np.concatenate([train.y["labels"], test.y["labels"]])
        assert np.array_equal(rows[:, 0] / 3, labels[:, 0] / 2)  # together as they were


def test_several_and_a_test_set(tmp_path: Path) -> None:
    arrays = {"a": X, "b": X, "out0": Y, "out1": Y}
    ends = {f"{name}_test": array[:3] for name, array in arrays.items()}
    train, test = load_named(write(tmp_path, **arrays, **ends), graph(2, 2))
    assert test is not None
    assert (train.samples, test.samples) == (10, 3)
    assert list(train.x) == ["a", "b"]
    assert train.y is not None
    assert list(train.y) == ["out0", "out1"]


def test_without_labels(tmp_path: Path) -> None:
    train, test = load_named(write(tmp_path, x=X), graph(), labelled=False)
    assert (train.samples, train.y, test) == (10, None, None)
    assert np.array_equal(train.x["a"], X)
    train, test = load_named(write(tmp_path, x=X, y=Y[:4], x_test=X[:2]), graph(), labelled=False)
    assert test is not None
    assert (train.samples, test.samples, test.y) == (10, 2, None)


def test_mistakes(tmp_path: Path) -> None:
    for arrays, message in (
        ({"a": X, "out0": Y, "out1": Y}, "holds a, out0, out1, but the model needs an array 'b'$"),
        ({"a": X, "b": X, "out0": Y}, "the model needs an array 'out1'"),
        ({"a": X, "b": X, "out0": Y, "out1": Y[:4]}, "there are 10 of a, 10 of b, 10 of out0, 4 o"),
    ):
        with pytest.raises(UserError, match=message):
            load_named(write(tmp_path, **arrays), graph(2, 2))
    with pytest.raises(UserError, match=r"the model needs an array 'labels' \(or y\)"):
        load_named(write(tmp_path, x=X), graph())
    with pytest.raises(UserError, match=r"none.npz: a model of your own takes --data synthetic, o"):
        load_named(str(tmp_path / "none.npz"), graph())
    (tmp_path / "bad.npz").write_text("nothing")
    with pytest.raises(UserError, match=r"this is no .npz archive"):
        load_named(str(tmp_path / "bad.npz"), graph())
