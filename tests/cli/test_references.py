"""Models of one's own: how commands name them, and strategy files of theirs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import FEW, Capture, error_of, json_of, text_of

from flexlegion import Strategy, UserError
from flexlegion.cli.main import main
from flexlegion.graph.fingerprint import Fingerprint
from flexlegion.machine.devices import Devices
from flexlegion.networks.references import load_model
from flexlegion.zoo import ZOO, build

NETS = """
import sys
from typing import Optional

import flexlegion as fl

print("note: this is no result")


def model(
    batch_size: int = 16,
    widths: "tuple[int, ...]" = (32, 16),
    activation: Optional[str] = "relu",
    bias: bool = True,
    rate: float = 0.0,
    depth=1,
):
    net = fl.Model(batch_size)
    x = net.input((8,), name="x")
    for number, width in enumerate(depth * widths):
        x = net.dense(x, width, activation=activation, use_bias=bias, name=f"hidden{number}")
    net.softmax(net.dense(x, 4, name="classes"), name="softmax")
    return net


def regression():
    net = fl.Model(4)
    net.dense(net.input((8,)), 1, name="value")
    net.loss = "mean_squared_error"
    return net


def says_no_loss(batch_size=4):
    net = fl.Model(batch_size)
    net.dense(net.input((8,)), 1, name="value")
    return net


def narrow(width: int):
    return model(widths=(width,))


def returns_nothing():
    model()


def returns_a_list():
    return [model()]


def raises(number: int = 3):
    return [1][number]


def leaves():
    sys.exit(3)


def does_not_fit():
    net = fl.Model(4)
    net.conv2d(net.input((8,), name="x"), 4, 3, name="conv")
    return net
"""
LINES = NETS.splitlines()
MACHINE = ["--machine", "p100x2"]


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of networks; its folder is the current one."""
    path = tmp_path / "nets.py"
    path.write_text(NETS)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "inner.py").write_text("from nets import model as net\n")
    monkeypatch.chdir(tmp_path)
    return path


def _line(text: str) -> int:
    return 1 + next(i for i, line in enumerate(LINES) if text in line)


# How models are named


@pytest.mark.parametrize("name", ["nets.py", "nets.py:model", "nets:model", "package.inner:net"])
@pytest.mark.usefixtures("nets")
def test_names(capsys: Capture, name: str) -> None:
    facts = json_of(capsys, "simulate", "--model", name, *MACHINE)
    assert facts["model"] == ("nets.py:model" if name == "nets.py" else name)
    assert (facts["batch_size"], facts["sizes"]) == (16, {})
    assert facts["loss"] == "sparse_categorical_crossentropy"  # after a softmax
    assert facts["fingerprint"] == Fingerprint.of(load_model("nets.py").graph).value


@pytest.mark.usefixtures("nets")
def test_sizes(capsys: Capture) -> None:
    given = {"widths": "8x6x4", "activation": "tanh", "bias": "false", "rate": "1e-3", "depth": "2"}
    options = [word for name, text in given.items() for word in ("--size", f"{name}={text}")]
    args = ["--model", "nets.py", "--batch-size", "8", *options, *MACHINE]
    facts = json_of(capsys, "simulate", *args)
    sizes = {"widths": [8, 6, 4], "activation": "tanh", "bias": False, "rate": 1e-3, "depth": 2}
    assert (facts["batch_size"], facts["sizes"]) == (8, sizes)
    model = load_model("nets.py", 8, given)
    assert [op.output.shape for op in model.graph.operators][3:6] == [(8, 8), (8, 6), (8, 4)]
    assert all(len(op.weights) <= 1 for op in model.graph.operators[:6])
    assert model.reference is not None
    assert model.reference.sizes == sizes | {"widths": (8, 6, 4)}


@pytest.mark.usefixtures("nets")
def test_what_it_is_trained_with(capsys: Capture) -> None:
    own = json_of(capsys, "simulate", "--model", "nets.py:regression", *MACHINE)
    assert (own["loss"], own["batch_size"]) == ("mean_squared_error", 4)
    args = ["simulate", "--model", "nets.py:says_no_loss", *MACHINE]
    # The same by default as for `Model.compile`, and the command says so.
    assert main(args) == 0
    printed = capsys.readouterr()
    out = printed.out.replace("\n", " ")
    assert "; sgd, sparse_categorical_crossentropy; strategy data" in out
    assert "note: trained with sparse_categorical_crossentropy by default" in printed.err
    assert json_of(capsys, *args, "--loss", "mean_squared_error")["fits"]


@pytest.mark.usefixtures("nets")
def test_printing_is_not_part_of_the_result(capsys: Capture) -> None:
    out, err = text_of(capsys, "simulate", "--model", "nets.py", *MACHINE)
    assert "no result" not in out
    assert "this is no result\n" in err


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["nets.py:modl"], "nets.py: there is no function 'modl' (did you mean 'model'?); it has "),
        (["nets:modl"], "nets: there is no function 'modl' (did you mean 'model'?); it has "),
        (["other.py:model"], "other.py: no such file; a model of your own is named as path.py:fun"),
        (["other.pt2"], "other.pt2: no such file; give one that torch.export.save has written"),
        (["lenets"], "unknown model 'lenets' (did you mean 'lenet'?); choose one of alexnet, "),
        (["nest:model"], "unknown model 'nest:...': there is no module 'nest' here or on Python's"),
        (["package.x:model"], "unknown model 'package.x:...': there is no module 'package.x' here"),
        (["nets.py", "--size", "depth=x"], "--size depth has to be a whole number, but is 'x'"),
        (["nets.py", "--size", "bias=x"], "--size bias has to be true or false, but is 'x'"),
        (["nets.py", "--size", "rate=x"], "--size rate has to be a number, but is 'x'"),
        (["nets.py", "--size", "steps=3"], "model 'nets.py:model' has no size 'steps'; it has wid"),
        (["nets.py:narrow"], "nets.py:narrow needs a width; give it (--size width=...)"),
        (["nets.py:regression", "--batch-size", "8"], "nets.py:regression has a batch size of its"),
        (["nets.py:returns_nothing"], "nets.py:returns_nothing: it returns nothing; it has to "),
        (["nets.py:returns_a_list"], "nets.py:returns_a_list: it returns an object of type list;"),
        (
            ["nets.py:raises"],
            "nets.py:raises raises IndexError: list index out of range (nets.py, line "
            f"{_line('[1][number]')})",
        ),
        (
            ["nets.py:leaves"],
            f"nets.py:leaves raises SystemExit: 3 (nets.py, line {_line('sys.exit')})",
        ),
        (
            ["nets.py:does_not_fit"],
            "nets.py:does_not_fit: operator 'conv': conv2d takes an input of 4 dimensions (sample, "
            f"height, width, channel), but got shape [4, 8] (nets.py, line {_line('net.conv2d')})",
        ),
    ],
)
@pytest.mark.usefixtures("nets")
def test_mistakes(capsys: Capture, args: list[str], text: str) -> None:
    assert error_of(capsys, "simulate", *MACHINE, "--model", *args).startswith(text)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("def model(:\n", "bad.py: SyntaxError: invalid syntax (bad.py, line 1)"),
        ("\n1 / 0\n", "bad.py raises ZeroDivisionError: division by zero (bad.py, line 2)"),
        ("import no_such_package\n", "bad.py raises ModuleNotFoundError: No module named 'no_s"),
        ("WIDTH = 3\n", "bad.py: say which function returns the model: bad.py:NAME, and it has n"),
        ("def a(): pass\ndef b(): pass\n", "bad.py: say which function returns the model: bad.py"),
    ],
)
def test_files_that_cannot_be_loaded(capsys: Capture, nets: Path, source: str, text: str) -> None:
    nets.with_name("bad.py").write_text(source)
    assert error_of(capsys, "simulate", "--model", "bad.py", *MACHINE).startswith(text)


def test_no_file_of_torch_export(capsys: Capture, nets: Path) -> None:
    """What is no archive is refused before PyTorch is imported, which takes seconds."""
    nets.with_name("net.pt2").write_bytes(b"PK\x03\x04 and no more")
    text = error_of(capsys, "simulate", "--model", "net.pt2", *MACHINE)
    assert text.startswith("net.pt2: not an exported program, or cut short: it is no ZIP archive")
    pytest.importorskip("torch")
    np.savez(nets.with_name("net.npz"), x=np.zeros(1))
    nets.with_name("net.npz").rename(nets.with_name("net.pt2"))
    text = error_of(capsys, "simulate", "--model", "net.pt2", *MACHINE)
    assert text.startswith("net.pt2: not a file that torch.export.save has written, or cut short")


MODULES = """
import torch
from torch import nn


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def net(width: int = 8):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU()), (torch.zeros(16, 4),)


def alone():
    return net()[0]


def breaks():
    return Branch(), (torch.zeros(16, 4),)
"""


def test_modules_of_pytorch(capsys: Capture, nets: Path) -> None:
    torch = pytest.importorskip("torch")
    nets.with_name("modules.py").write_text(MODULES)
    args = [*MACHINE, "--loss", "mean_squared_error", "--model"]
    sized = ["--size", "width=6", "--batch-size", "32"]
    facts = json_of(capsys, "simulate", *args, "modules.py:net", *sized)
    assert (facts["batch_size"], facts["sizes"]) == (32, {"width": 6})
    text = error_of(capsys, "simulate", *args, "modules.py:alone")
    assert text.startswith("modules.py:alone: it returns a PyTorch module alone; return (module, ")
    text = error_of(capsys, "simulate", *args, "modules.py:breaks")
    assert text.startswith("modules.py:breaks: torch.export cannot export Branch: ")
    # The same from a file, with another batch size.
    linear, batch = torch.nn.Linear(4, 2), torch.export.Dim("batch")
    inputs = (torch.zeros(3, 4),)
    for name, dynamic in (("net.pt2", ({0: batch},)), ("fixed.pt2", None)):
        program = torch.export.export(linear, inputs, dynamic_shapes=dynamic)
        torch.export.save(program, nets.with_name(name))
    facts = json_of(capsys, "simulate", *args, "net.pt2", "--batch-size", "64")
    assert (facts["model"], facts["batch_size"]) == ("net.pt2", 64)
    text = error_of(capsys, "simulate", *args, "fixed.pt2")
    assert text.startswith("fixed.pt2: the exported program has a fixed batch; export it with ")


# Strategy files


@pytest.mark.usefixtures("nets")
def test_strategies_of_own_models(capsys: Capture) -> None:
    args = ["--model", "nets.py", "--size", "depth=2"]
    found = json_of(capsys, "search", *args, *MACHINE, *FEW, "--out", "s.json")
    text = error_of(capsys, "explain", "s.json")  # which would run code that nobody named
    assert text == (
        's.json: this strategy was found for "nets.py:model", which no command runs unless you '
        "name it; give --model"
    )
    # All else is as the file says, the sizes included.
    again = json_of(capsys, "simulate", "--strategy", "s.json", "--model", "./nets.py")
    assert again["iteration_time_ns"] == found["iteration_time_ns"]
    assert again["sizes"] == {"depth": 2}
    assert json_of(capsys, "explain", "s.json", "--model", "nets.py")["deviations"]
    # Another batch size and another loss are no other network.
    other = ["--batch-size", "64", "--loss", "categorical_crossentropy", "--optimizer", "adam"]
    json_of(capsys, "simulate", "--strategy", "s.json", "--model", "nets.py", *other)


@pytest.mark.usefixtures("nets")
def test_strategies_of_other_networks(capsys: Capture) -> None:
    text_of(
        capsys,
        "strategy",
        "--model",
        "nets.py",
        "--strategy",
        "model",
        "--out",
        "s.json",
        "--cpus",
        "2",
    )
    begin = "s.json: this strategy is for another network (nets.py:model): operator "
    args = ["simulate", "--strategy", "s.json", *MACHINE, "--model"]
    assert error_of(capsys, *args, "nets.py", "--size", "widths=32x8") == (
        f"{begin}'hidden1' is dense 16 there, but dense 8 here, "
        "'classes' (dense 4) has other attributes or inputs here"
    )
    assert error_of(capsys, *args, "nets.py", "--size", "activation=tanh") == (
        f"{begin}'hidden0' (dense 32) has other attributes or inputs here, "
        "'hidden1' (dense 16) has other attributes or inputs here"
    )
    text = error_of(capsys, *args, "nets.py:regression")
    assert text.startswith(f"{begin}'hidden0' (dense 32) is not here, ")
    assert text.endswith(", and 2 more differ")
    model = load_model("nets.py", sizes={"depth": 2})
    with pytest.raises(UserError, match="for another network"):
        Strategy.load("s.json").checked(model.graph, Devices.of(cpus=2))


def test_files_without_fingerprints_and_with_wrong_ones(capsys: Capture, nets: Path) -> None:
    text_of(capsys, "strategy", "--model", "nets.py", "--out", "s.json", "--cpus", "2")
    document = json.loads(nets.with_name("s.json").read_text())
    for graph, error in (({"classes": 3}, "s.json: 'found' has the graph "), (None, "")):
        document["found"]["graph"] = graph
        nets.with_name("s.json").write_text(json.dumps(document))
        args = ["plan", "--strategy", "s.json", "--model", "nets.py"]
        if error:
            assert error_of(capsys, *args).startswith(error)
        else:
            text_of(capsys, *args)


@pytest.mark.parametrize("name", ZOO)
def test_the_batch_size_is_not_in_the_fingerprint(name: str) -> None:
    fingerprints = {Fingerprint.of(build(name, size).graph).value for size in (2, 4)}
    assert len(fingerprints) == 1
