"""`flexlegion export`, and programs for the user's own module."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from exported import loaded
from torch import nn

import flexlegion as fl
from flexlegion.cli.main import main

Capture = pytest.CaptureFixture[str]


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_a_program_and_its_weights(tmp_path: Path, capsys: Capture) -> None:
    plan, weights = tmp_path / "plan.py", tmp_path / "first.npz"
    options = ["--model", "lenet", "--machine", "p100x4", "--out", plan, "--weights", weights]
    run("export", "data", "--to", "dtensor", *options)
    printed = capsys.readouterr().out
    assert "12 of 12 operators are divided as the strategy says" in printed
    assert max(map(len, printed.replace(str(tmp_path), "").splitlines())) <= 80
    module = loaded(plan)
    with np.load(weights) as saved:
        assert set(saved) == set(module.WEIGHTS)
    assert module.SIZES == (4,)


def test_what_is_replaced_is_told(tmp_path: Path, capsys: Capture) -> None:
    plan = tmp_path / "plan.py"
    options = ["--model", "lenet", "--machine", "p100x4", "--out", plan]
    run("export", "random:1", "--to", "dtensor", *options, "--json")
    facts = json.loads(capsys.readouterr().out)
    assert facts["replaced"][0]["reason"] in plan.read_text()
    assert facts["given_time_ns"] > 0
    assert facts["program_time_ns"] > 0
    run("export", "random:1", "--to", "dtensor", *options)
    printed = capsys.readouterr().out.replace(str(tmp_path), "")
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "--to", "mxnet"], "target 'mxnet'"),
        (["s.json", "--to", "jax"], "s.json"),
    ],
)
def test_wrong_input(arguments: list[str], message: str, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "plan.py"
    its = ["--model", "lenet", "--machine", "p100x2", "--out", out]
    assert run("export", *arguments, *its) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


class Net(nn.Module):
    """Convolution, normalisation, a dense layer after a flatten, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.dense = nn.Linear(4 * 6 * 5, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.right.weight = self.left.weight
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.conv(x)))
        y = self.dense(y.flatten(1)).unsqueeze(1)
        y = self.right(torch.tanh(self.left(self.lstm(y)[0][:, 0])))
        return self.head(y)


def test_weights_of_a_module_and_back(tmp_path: Path) -> None:
    """What the program reads from the module is what the import read, and goes back."""
    torch.manual_seed(0)
    module = Net()
    model = fl.from_torch(module, torch.randn(8, 3, 6, 5))
    model.loss = "sparse_categorical_crossentropy"
    done = fl.export(model, "p100x2", "data", "dtensor")
    (tmp_path / "plan.py").write_text(done.text)
    plan = loaded(tmp_path / "plan.py")
    weights = plan.weights_of(module, done.first_values())
    for tensor in model.graph.weights:
        assert tensor.initializer is not None
        expected = tensor.initializer(tensor.shape, tensor.name, model.seed, tensor.dtype)
        assert np.array_equal(torch.as_tensor(weights[tensor.name]).numpy(), expected)
    torch.manual_seed(1)
    other = Net()
    plan.to_module(weights, other)
    for name, value in module.named_parameters():
        assert torch.equal(dict(other.named_parameters())[name], value), name


def test_a_division_in_words(tmp_path: Path, capsys: Capture) -> None:
    """Is a strategy like any other: a pipeline of two stages, whose weights are in shards."""
    plan = tmp_path / "plan.py"
    sizes = [
        "--size",
        "layers=2",
        "--size",
        "hidden=128",
        "--size",
        "heads=4",
        "--size",
        "steps=16",
    ]
    asked = ["--model", "gpt", *sizes, "--size", "vocabulary=64", "--batch-size", 8]
    its = [*asked, "--machine", "p100x4", "--micro-batches", 2, "--optimizer", "adam"]
    assert run("export", "pp=2 zero=3", *its, "--to", "dtensor", "--out", plan, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["strategy"] == "dp=2 pp=2 zero=3"
    assert facts["replaced"] == []
    assert facts["pipeline"]["stages"] == [[0, 1], [2, 3]]
    assert '"weights"' in plan.read_text()
