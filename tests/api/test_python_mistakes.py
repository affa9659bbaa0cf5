"""Mistakes that users of the Python functions make, and what each is told.

A file of ``mistakes/`` has a call a line, and below it, indented, the message; `...` stands for
lists of names. A call is a mistake: it raises, with one sentence, and nothing private is named.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flexlegion as fl
from flexlegion.graph import initializers
from flexlegion.objective import losses, schedules

FOLDER = Path(__file__).with_name("mistakes")
FILES = {
    "bad.py": b"import flexlegion as fl\ndef model(:\n",
    "raises.py": b"def model(batch_size=4):\n    raise KeyError('oops')\n",
    "none.py": b"def model(batch_size=4):\n    return None\n",
    "nomodel.py": b"x = 3\n",
    "two.py": b"def a():\n    pass\ndef b():\n    pass\n",
    "args.py": b"def model(width):\n    pass\n",
    "exits.py": b"import sys\nsys.exit(3)\n",
    "imports.py": b"import tensorflow_is_not_here\n",
    "garbage.json": bytes(range(256)),
    "list.json": b"[]",
}
MODULES = {"fl": fl, "np": np, "torch": torch, "losses": losses, "schedules": schedules}
PRIVATE = re.compile(r"\b_[a-z]|\b[A-Z]\w+Layers\b|__init__|HasStrategy|Traceback")


def mistakes(name: str) -> list[tuple[str, str]]:
    """Calls and messages of a file."""
    lines = (FOLDER / f"{name}.txt").read_text().splitlines()
    return [(call, said.strip()) for call, said in zip(lines[::2], lines[1::2], strict=True)]


def small(batch_size: int = 4) -> fl.Model:
    model = fl.Model(batch_size)
    x = model.dense(model.input((8,), name="x"), 8, "relu", name="first")
    model.softmax(model.dense(x, 3, name="second"), name="soft")
    return model


def tensors() -> dict[str, Any]:
    """A model and inputs of many kinds."""
    model = fl.Model(4)
    return {
        "m": model,
        "x": model.input((6,), name="x"),
        "image": model.input((8, 8, 3), name="image"),
        "steps": model.input((4, 6), name="steps"),
        "tokens": model.input((4,), "int32", name="tokens"),
        "heads": model.input((2, 4, 6), name="heads"),
        "other": fl.Model(4).input((6,), name="foreign"),
    }


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What calls of functions may name, in a folder with wrong files."""
    folder = tmp_path_factory.mktemp("mistakes")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        kinds = {name: getattr(initializers, name) for name in ("Constant", "Given", "Normal")}
        yield MODULES | kinds | {
            "net": small(), "small": small, "machine": "p100x2", "nan": math.nan, "inf": math.inf,
        }  # fmt: skip
        # Nothing is written, but for what Python keeps of modules that it imports.
        left = {path.name for path in folder.iterdir()} - {"__pycache__"}
        assert left == {*FILES}


def told(call: str, names: dict[str, Any]) -> str:
    """The one sentence that a call raises."""
    with pytest.raises((fl.UserError, AttributeError)) as error:
        eval(call, dict(names))
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 2000
    assert not PRIVATE.search(text), text
    return text


def compare(text: str, said: str) -> None:
    if said.endswith(" ..."):
        assert text.startswith(said.removesuffix(" ..."))
    else:
        assert text == said


@pytest.mark.parametrize(("call", "said"), mistakes("layers"))
def test_layers(call: str, said: str) -> None:
    compare(told(call, MODULES | tensors() | {"nan": math.nan, "inf": math.inf}), said)


@pytest.mark.parametrize(("call", "said"), mistakes("functions"))
def test_functions(call: str, said: str, names: dict[str, Any]) -> None:
    compare(told(call, names), said)


def test_there_are_many() -> None:
    assert len(mistakes("layers")) + len(mistakes("functions")) > 500


@pytest.mark.parametrize("layer", ["conv2d"])
def test_channels_first_are_said(layer: str) -> None:
    """It can be meant so, but hardly is."""
    model = fl.Model(2)
    x = model.input((3, 32, 32), name="photo")
    with pytest.warns(UserWarning, match=r"'photo' has a height of 3 and 32 channels; if it is"):
        getattr(model, layer)(x, 4, 3)


def test_tensors_have_no_arithmetic() -> None:
    its = tensors()
    with pytest.raises(fl.UserError, match=r"only layers take it: model.add\(\[a, b\]\)"):
        its["x"] + 1
    assert its["x"] or its["steps"]  # a tensor or None is chosen so
