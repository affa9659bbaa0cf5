"""Inputs, outputs and labels of imported models are arranged as the module's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from arranged_modules import Written, cases
from launch import run_legate
from torch import nn

import flexlegion as fl
from flexlegion.base.errors import UserError
from flexlegion.layers.arrangement import Arrangement, Form

ALL = list(cases())


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What differs from PyTorch, by module."""
    file = tmp_path_factory.mktemp("arrangement") / "wrong.json"
    worker = Path(__file__).with_name("arrangement_worker.py")
    run_legate(worker, file, *ALL, cpus=2)
    found: dict[str, list[str]] = json.loads(file.read_text())
    return found


@pytest.mark.legion
@pytest.mark.parametrize("name", ALL)
def test_as_in_the_module(name: str, wrong: dict[str, list[str]]) -> None:
    """Predictions, losses by labels of every form, and a step of training are PyTorch's."""
    assert wrong[name] == []


IMAGES = Form((8, 4, 5, 1), Arrangement.in_order((0, 2, 3, 1)), loose=True)


def test_forms() -> None:
    rng = np.random.default_rng(0)
    theirs = rng.random((3, 1, 4, 5))
    ours = theirs.transpose(0, 2, 3, 1)
    for given in (theirs, ours, theirs[:, 0]):
        assert np.array_equal(IMAGES.arranged("y", given), ours)
    one = Form((8, 1))
    assert one.arranged("y", np.ones(3)).shape == (3, 1)
    assert Form((8,)).arranged("y", np.ones((3, 1))).shape == (3,)
    merged = Form((8, 4, 2), Arrangement(((0, 1), (2,))))
    assert merged.arranged("y", np.arange(24).reshape(12, 2))[1, 0, 0] == 8
    first = Form((8, 4, 2), Arrangement(((1,), (0,), (2,))))
    assert first.arranged("y", np.ones((4, 3, 2))).shape == (3, 4, 2)


@pytest.mark.parametrize(
    ("form", "shape", "message"),
    [
        (
            IMAGES,
            (3, 5, 4),
            r"y: got data of shape \[3, 5, 4\], expected \[n, 4, 5, 1\], or as the module has it, "
            r"\[n, 1, 4, 5\]",
        ),
        (Form((8, 4)), (3, 5), r"got data of shape \[3, 5\], expected \[n, 4\]"),
        (Form((8,)), (3, 2), r"expected \[n\]"),
        (Form((8, 4)), (4,), r"expected \[n, 4\]"),
        (Form((8, 4, 1, 4), IMAGES.arrangement, True), (3, 4, 4), "in two ways"),
        (Form((8, 4, 5)), (3, 4, 5, 1), r"expected \[n, 4, 5\]"),
        (Form((8, 4, 2), Arrangement(((0, 1), (2,)))), (11, 2), r"\[n \* 4, 2\]"),
    ],
)
def test_other_shapes_are_refused(form: Form, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        form.arranged("y", np.ones(shape))


def test_a_shape_that_does_not_tell_the_arrangement_is_said() -> None:
    model = fl.from_torch(nn.Conv2d(4, 4, 1), torch.randn(2, 4, 4, 4))
    assert model.origin is not None
    assert [note.split(" has")[0] for note in model.origin.notes] == [
        "input 'input'",
        "output 'output'",
    ]


def test_outputs_that_cannot_be() -> None:
    module = Written(lambda s, x: s.a(x).view(-1, 2, 2, 2, 2, 2), a=nn.Linear(6, 32))
    with pytest.raises(UserError, match="output 'output' has 6 dimensions, but 5 are the most"):
        fl.from_torch(module, torch.randn(4, 6))


def test_inputs_that_do_not_fit() -> None:
    model = fl.from_torch(nn.Conv2d(3, 4, 1), torch.randn(2, 3, 5, 4))
    assert model.origin is not None
    with pytest.raises(UserError, match=r"input 'input' has 4 dimensions in the module"):
        model.origin.arrays(torch.randn(2, 3, 5))
    with pytest.raises(UserError, match="1 inputs, input, but 2 were given"):
        model.origin.arrays([torch.randn(2, 3, 5, 4)] * 2)
    with pytest.raises(UserError, match="unknown output 'logits'"):
        model.origin.as_module("logits", np.zeros((2, 5, 4, 4)))
