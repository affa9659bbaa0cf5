"""Data by a network's task: the samples, and the sizes that a network gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flexlegion.base.errors import UserError
from flexlegion.data import ImageFolder, TokenDataset, write_digits
from flexlegion.data.tasks import TASKS, Request, load_for, network_sizes
from flexlegion.zoo import ZOO, build


@pytest.mark.parametrize("name", ZOO)
def test_every_task_is_known(name: str) -> None:
    assert ZOO[name].task in TASKS


@pytest.mark.parametrize("name", ZOO)
def test_every_network_has_a_sample(name: str) -> None:
    entry = ZOO[name]
    splits = load_for(entry.task, entry.sizes_with(entry.sample_sizes), Request("sample"))
    train, test = splits.divided(None, 0)
    sizes = entry.sample_sizes | network_sizes(entry.task, train, {})
    graph = build(name, 4, **sizes).graph
    assert [t.shape[1:] for t in graph.inputs] == [a.shape[1:] for a in train.inputs]
    assert len(train) > 1000
    assert len(test) > 100
    if isinstance(train, TokenDataset):
        assert isinstance(test, TokenDataset)
        # The words are mostly known: at most a tenth of what is to be predicted is not.
        unknown = train.vocabularies[-1].number("<unk>")
        tokens = test.inputs[0 if entry.task == "masked" else -1]
        assert (tokens == unknown).mean() < 0.15


def test_digits_take_the_size_of_the_network() -> None:
    sizes = {"input_shape": (20, 24, 1)}
    assert load_for("images", sizes, Request("digits")).train.x.shape == (1797, 20, 24, 1)
    with pytest.raises(UserError, match=r"shape \(height, width, 1\), but the network's .*32x32x3"):
        load_for("images", {"input_shape": (32, 32, 3)}, Request("digits"))


def test_folders_of_images(tmp_path: Path) -> None:
    write_digits(tmp_path)
    folder = load_for("images", {"input_shape": (8, 8, 1)}, Request(str(tmp_path))).train
    assert isinstance(folder, ImageFolder)
    assert network_sizes("images", folder, {"classes": 12}) == {
        "input_shape": (8, 8, 1),
        "classes": 12,
    }
    with pytest.raises(UserError, match="need a network of classes at least 10, but it is given a"):
        network_sizes("images", folder, {"classes": 9})
    with pytest.raises(UserError, match="the labels of images are their folders' names"):
        load_for("images", {"input_shape": (8, 8, 1)}, Request(str(tmp_path), "y.npy"))


def arrays(path: Path, x: Any, y: Any) -> Request:
    np.savez(path / "a.npz", x=np.asarray(x), y=np.asarray(y))
    return Request(str(path / "a.npz"))


def test_arrays_of_tokens(tmp_path: Path) -> None:
    sizes = {"steps": 40, "vocabulary": 100}
    request = arrays(tmp_path, [[1, 5, 2], [0, 0, 3]], [1, 0])
    train = load_for("text", sizes, request).train
    assert isinstance(train, TokenDataset)
    assert (train.x.dtype, train.x.tolist()) == (np.int32, [[1, 5, 2], [0, 0, 3]])
    assert network_sizes("text", train, {}) == {"steps": 3, "vocabulary": 6, "classes": 2}
    assert network_sizes("text", train, {"vocabulary": 50})["vocabulary"] == 50
    for given, text in (
        ({"vocabulary": 5}, "at least 6, but it is given as 5"),
        ({"steps": 4}, "3"),
    ):
        with pytest.raises(UserError, match=f"need a network of {next(iter(given))} {text}"):
            network_sizes("text", train, given)
    request = arrays(tmp_path, [[1, 5, 2], [0, 0, 3]], [[5, 2, 7], [0, 3, 1]])
    train = load_for("language", sizes, request).train
    assert network_sizes("language", train, {}) == {"steps": 3, "vocabulary": 8}
    assert train.n_classes == 8


@pytest.mark.parametrize(
    ("task", "x", "y", "text"),
    [
        ("text", [[0.5, 1]], [0], r"tokens are whole numbers from 0 of the shape \(n, steps\)"),
        ("text", [[-1, 1]], [0], "tokens are whole numbers from 0"),
        ("text", [[[1], [1]]], [0], "tokens are whole numbers from 0"),
        (
            "language",
            [[1, 2]],
            [0],
            r"the labels have the shape \[1\], but the network needs \[1, 2",
        ),
        ("text", [[1, 2]], [[0, 1]], r"the labels have the shape \[1, 2\], but the network needs "),
    ],
)
def test_refuses_other_arrays(tmp_path: Path, task: str, x: Any, y: Any, text: str) -> None:
    with pytest.raises(UserError, match=text):
        load_for(task, {"steps": 4, "vocabulary": 9}, arrays(tmp_path, x, y))


@pytest.mark.parametrize(
    ("task", "request_", "text"),
    [
        ("text", Request("none.tsv"), "none.tsv: there is no such file or directory; use sample, "),
        ("language", Request("none"), r"none: there is no such .* or a .txt file, a folder with"),
        ("translation", Request("none"), "none.en: there is no such file, and the sentences in"),
        ("text", Request("digits"), "digits: there is no such file or directory; use sample, "),
        ("images", Request("none"), "none: there is no such file or directory; use the name digi"),
        ("text", Request("sample", augment=True), "--augment goes with folders of images"),
        ("images", Request("digits", augment=True), "digits: --augment goes with folders of imag"),
    ],
)
def test_refuses_other_sources(task: str, request_: Request, text: str) -> None:
    sizes = {"steps": 4, "vocabulary": 9, "input_shape": (8, 8, 1)}
    with pytest.raises(UserError, match=text):
        load_for(task, sizes, request_)
