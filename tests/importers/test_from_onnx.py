"""ONNX files become models: what torch.export makes of the same module, and messages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from imports_case import CASES, Case, differences, export_onnx, network, reference
from launch import ROOT, run_legate
from onnx import TensorProto, helper
from torch import nn

import flexlegion as fl
from flexlegion.base.errors import UserError


def kinds(model: fl.Model) -> Counter[str]:
    """How many operators of each type there are."""
    return Counter(operator.kind.type for operator in model.graph.operators)


def both(module: nn.Module, example: Any, path: Path) -> tuple[fl.Model, fl.Model]:
    """The model of the file, and of the module itself."""
    export_onnx(module, example, str(path))
    return fl.from_onnx(path, batch_size=len(example)), fl.from_torch(module, example)


class Small(nn.Module):
    """A convolution, a normalisation, a pooling, and dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.first = nn.Linear(48, 8)
        self.second = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.second(torch.tanh(self.first(x.flatten(1))))


def test_a_file_becomes_what_the_module_becomes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Small()
    file, direct = both(module, torch.randn(2, 3, 6, 8), tmp_path / "net.onnx")
    assert kinds(file) == kinds(direct)
    assert file.origin is not None
    assert direct.origin is not None
    assert file.graph.inputs[0].shape == (2, 6, 8, 3)
    assert set(file.origin.places) == set(direct.origin.places)
    drawn = {w.name: w.initializer(w.shape, "", 0) for w in file.graph.weights}
    for name, value in module.state_dict().items():
        if name in file.origin.places:
            assert np.array_equal(file.origin.parameter(name, drawn), value.numpy().reshape(-1))


def test_a_folded_normalisation_is_told_of(tmp_path: Path) -> None:
    """What has a bias and no normalisation behind it may have lost one."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    file, _ = both(module, torch.randn(2, 3, 6, 8), tmp_path / "net.onnx")
    assert file.origin is not None
    (note,) = file.origin.notes
    assert "1 convolutions" in note
    assert "train mode" in note


def test_a_reference_names_a_file(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    export_onnx(nn.Linear(4, 3), torch.randn(2, 4), str(path))
    assert fl.load_model(str(path), batch_size=8).outputs[0].shape == (8, 3)
    with pytest.raises(UserError, match="needs a batch size"):
        fl.load_model(str(path))
    with pytest.raises(UserError, match="no such file"):
        fl.load_model(str(tmp_path / "other.onnx"))


def made(op: str, first: int | str = "batch", opset: int = 20, **attributes: Any) -> Any:
    """A model of one operator, (first, 4) to (first, 4)."""
    value = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [first, 4])]
    result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [first, 4])]
    node = helper.make_node(op, ["x"], ["y"], name="/block/layer/Operator", **attributes)
    graph = helper.make_graph([node], "net", value, result)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (made("Round"), ["1 of the network's operations", "'Round' at 'block.layer'", "not known"]),
        (made("Relu", first=2), ["fixed number of samples"]),
        (made("Relu", opset=11), ["opset 11", "13 or later"]),
        ("no.onnx", ["no file no.onnx"]),
        (3, ["path of an ONNX file", "int"]),
    ],
    ids=["unknown", "fixed", "old", "no_file", "no_model"],
)
def test_what_cannot_be_imported_is_said_in_a_sentence(source: Any, words: list[str]) -> None:
    with pytest.raises(UserError) as e:
        fl.from_onnx(source, batch_size=2)
    assert all(word in str(e.value) for word in words), str(e.value)
    assert "\n" not in str(e.value)


def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(made("Relu"), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError):
        fl.from_onnx(path, batch_size=2)


SMALL = ("resnet50", "llama", "tagger", "unet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files, and what the worker saved."""
    folder = tmp_path_factory.mktemp("onnx")
    for name in SMALL:
        module, example = network(name, CASES.get(name, Case()))
        torch.save(module.state_dict(), folder / f"{name}.pt")
        export_onnx(module, example, str(folder / f"{name}.onnx"))
    worker = ROOT / "scripts" / "bench" / "workers" / "imports_worker.py"
    names = ",".join(f"onnx:{name}" for name in SMALL)
    run_legate(worker, folder, names, "single", cpus=1, timeout=600)
    return folder


@pytest.mark.legion
@pytest.mark.parametrize("name", SMALL)
def test_trains_as_pytorch_does(name: str, folder: Path) -> None:
    from pytorch.small import trained

    with np.load(folder / f"{name}.onnx.npz") as saved:
        mine = dict(saved)
    assert "error" not in mine, str(mine["error"])
    case = CASES.get(name, Case())
    module, example = trained(name, case.seed)
    module.load_state_dict(torch.load(folder / f"{name}.pt"))
    _, _, failures = differences(mine, "single", reference(module, example, case.rate))
    assert not failures, failures
