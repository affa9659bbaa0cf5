"""A .pt2 is read as data: whatever in it torch would run is refused before torch reads it."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import flexlegion as fl
from flexlegion.importers.pt2 import _is_arithmetic

Change = Callable[[bytes], bytes]
SYMBOL = b"Symbol('s"


class Runs:
    """What runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.fixture(scope="module")
def archive() -> bytes:
    """An archive as torch writes it."""
    module = torch.nn.Linear(4, 3)
    batch = torch.export.Dim("b")
    program = torch.export.export(module, (torch.zeros(8, 4),), dynamic_shapes=({0: batch},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def changed(archive: bytes, changes: dict[str, Change], more: dict[str, bytes]) -> bytes:
    """The archive with other contents of some parts, by the ends of their names, and more parts."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(buffer, "w") as new:
        root = old.namelist()[0].partition("/")[0]
        for each in old.namelist():
            content = old.read(each)
            for end, change in changes.items():
                content = change(content) if each.endswith(end) else content
            new.writestr(each, content)
        for name, content in more.items():
            new.writestr(name.replace("ROOT", root), content)
    return buffer.getvalue()


def test_code_in_any_part(archive: bytes, tmp_path: Path) -> None:
    """Pickles in place of every part: none runs, and examples that are one are refused by name."""
    mark = tmp_path / "ran"
    saved = io.BytesIO()
    torch.save(Runs(mark), saved)
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        names = file.namelist()
    sentences = []
    for name in names:
        for payload in (saved.getvalue(), pickle.dumps(Runs(mark))):
            path = tmp_path / "evil.pt2"
            path.write_bytes(changed(archive, {name: lambda _, p=payload: p}, {}))
            try:
                fl.from_torch(path)
            except fl.UserError as e:
                sentences.append(str(e))
            assert not mark.exists(), name
    assert all(sentence.startswith(f"{path}: ") for sentence in sentences)
    pickles = [s for s in sentences if "is a pickle of more than tensors" in s]
    assert len(pickles) == 2  # data/sample_inputs/model.pt, in both forms


def test_other_code(archive: bytes, tmp_path: Path) -> None:
    """Sizes that are code, libraries, objects, classes to import, and what 2.7 wrote."""
    mark = tmp_path / "ran"
    code = f"__import__('os').mkdir('{mark}') or Symbol('s".encode()

    def with_context(context: Any) -> Change:
        spec = json.dumps([1, {"type": "builtins.dict", "context": context, "children_spec": []}])

        def change(content: bytes) -> bytes:
            document = json.loads(content)
            signature = document["graph_module"]["module_call_graph"][0]["signature"]
            signature["in_spec"] = spec
            return json.dumps(document).encode()

        return change

    def pickled(content: bytes) -> bytes:
        return content.replace(b'"use_pickle": false', b'"use_pickle": true')

    model, weights = "models/model.json", "model_weights_config.json"
    cases: list[tuple[str, dict[str, Change], dict[str, bytes]]] = [
        ("stands for a size", {model: lambda c: c.replace(SYMBOL, code)}, {}),
        ("is no data of an exported", {}, {"ROOT/data/aotinductor/model/m.so": b"1"}),
        ("is an object", {}, {"ROOT/data/constants/opaque_obj_0": b"1"}),
        ("is an object", {}, {"ROOT/data/constants/custom_obj_0": b"1"}),
        ("are pickled", {weights: pickled}, {}),
        ("torch would import", {model: with_context({"__enum__": True, "fqn": "this:x"})}, {}),
        ("torch would import", {model: with_context({"default_factory_module": "this"})}, {}),
        ("written by PyTorch 2.7", {}, {"version": b"8.1"}),
    ]
    path = tmp_path / "evil.pt2"
    for sentence, changes, more in cases:
        path.write_bytes(changed(archive, changes, more))
        with pytest.raises(fl.UserError, match=sentence):
            fl.from_torch(path)
        assert not mark.exists()
    path.write_bytes(archive)
    assert fl.from_torch(path).outputs[0].shape == (8, 3)
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Symbol('s31', positive=True, integer=True)", True),
        ("2*Symbol('s0') + FloorDiv(s1, 4) - Max(1, u0)", True),
        ("Eq(PythonMod(s0, 8), 0)", True),
        ("17", True),
        ("__import__('os')", False),
        ("Max('__import__(1)', s0)", False),
        ("Symbol(Symbol.__class__)", False),
        ("Symbol('a b')", False),
        ("(lambda: 1)()", False),
        ("[1 for x in s0]", False),
        ("sympify('1')", False),
        ("s0 if s1 else s2", False),
        ("(" * 500 + ")" * 500, False),
        (None, False),
    ],
)
def test_sizes(text: Any, expected: bool) -> None:
    """Which texts torch may hand to sympy, which evaluates them as Python."""
    assert _is_arithmetic(text) is expected
