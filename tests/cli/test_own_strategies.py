"""Strategies and searches that a model's file registers, where commands run models or simulate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Capture, error_of, json_of
from commands_on_legion import Done, run_all, started

NET = """
import os

import numpy as np

import flexlegion as fl


def model(batch_size: int = 8) -> fl.Model:
    net = fl.Model(batch_size)
    x = net.dense(net.input((6,), name="x"), 8, activation="relu", name="hidden")
    net.softmax(net.dense(x, 4, name="classes"), name="class")
    return net


def ends(graph, devices):
    half = len(graph.operators) / 2
    return {
        operator.name: fl.ParallelConfig(
            (1,) * len(operator.dims), (devices.names[0 if number < half else -1],)
        )
        for number, operator in enumerate(graph.operators)
    }


fl.register_strategy("ends")(ends)


@fl.register_strategy("divides")
def divides(graph, devices):
    return 1 // 0


@fl.register_strategy("in-numpy")
def in_numpy(graph, devices):
    return np.zeros(3).reshape(2, 2)


@fl.register_strategy("refused")
def refused(graph, devices):
    fl.load_model("nosuch")


@fl.register_strategy("texts")
def texts(graph, devices):
    return {operator.name: "cpu:0" for operator in graph.operators}


@fl.register_strategy("list")
def a_list(graph, devices):
    return list(graph.operators)


@fl.register_strategy("numbers")
def numbers(graph, devices):
    return {op.name: fl.ParallelConfig((1,) * len(op.dims), (0,)) for op in graph.operators}


@fl.register_strategy("by-rank")
def by_rank(graph, devices):
    own = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
    name = devices.names[own]
    return {op.name: fl.ParallelConfig((1,) * len(op.dims), (name,)) for op in graph.operators}


@fl.register_search("fails")
def fails(task):
    return task.nothing
"""
MISTAKES = {
    "divides": "divides in net.py raises ZeroDivisionError: integer division or modulo by zero (li",
    "in-numpy": "in_numpy in net.py raises ValueError: cannot reshape array of size 3 into shape",
    "refused": "strategy 'refused': unknown model 'nosuch'",
    "texts": "strategy 'texts': the configuration of operator 'hidden' has to be a ParallelConfig",
    "list": "strategy 'list': its function returns a list, but has to return a Strategy, or",
    "numbers": "strategy 'numbers': operator 'hidden' has the devices [0], no names",
}


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "net.py"
    path.write_text(NET)
    return path


@pytest.fixture(scope="module")
def done(net: Path) -> dict[str, Done]:
    """Commands on two processors."""
    own, out = ["--model", net, "--samples", 24, "--data", "synthetic"], net.parent
    train = ["train", *own, "--epochs", 1, "--strategy"]
    saved = ["--json", out / "trained.json", "--save-weights", out / "w.npz"]
    commands = {
        "train": [*train, "ends", *saved],
        "evaluate": ["evaluate", *own, "--weights", out / "w.npz", "--strategy", "ends", "--json"],
        **{name: [*train, name] for name in ("divides", "refused", "nosuch")},
    }
    return dict(zip(commands, run_all([*commands.values()], net.parent), strict=True))


@pytest.mark.legion
def test_train_and_evaluate(net: Path, done: dict[str, Done]) -> None:
    assert done["train"].status == 0, done["train"].err
    trained = json.loads((net.parent / "trained.json").read_text())
    assert trained["ran"]["strategy"] == "strategy 'ends'"
    assert done["evaluate"].facts["metrics"]["loss"] == pytest.approx(trained["loss"], rel=1e-5)


@pytest.mark.legion
@pytest.mark.parametrize("name", ["divides", "refused"])
def test_faults_in_training(done: dict[str, Done], name: str) -> None:
    assert done[name].sentence.startswith(MISTAKES[name])
    assert "net.py" in done[name].sentence
    assert "nosuch: no such strategy file" in done["nosuch"].sentence
    assert "ends, divides" in done["nosuch"].sentence  # they are among those that are known


@pytest.mark.legion
def test_ranks_that_differ(net: Path) -> None:
    """One sentence, where ranks would wait for each other for ever."""
    words = ["train", "--model", net, "--strategy", "by-rank", "--ranks", 2, "--cpus", 1]
    said = started(*words, "--epochs", 1, status=2).sentence
    assert "the strategy's configurations differ between ranks" in said


@pytest.mark.parametrize("name", MISTAKES)
def test_faults_in_simulations(net: Path, name: str, capsys: Capture) -> None:
    """Each is told as the user's own, with its line where there is one."""
    words = ["simulate", "--model", str(net), "--machine", "p100x2", "--strategy"]
    assert json_of(capsys, *words, "ends")["strategy"] == "ends"
    said = error_of(capsys, *words, name)
    assert said.startswith(MISTAKES[name])
    raises = NET.splitlines()
    line = next((i for i, text in enumerate(raises, 1) if _FAULTS.get(name, "?") in text), None)
    assert line is None or f"line {line})" in said


_FAULTS = {"divides": "1 // 0", "in-numpy": "reshape(2", "refused": "load_model"}


def test_fault_of_a_search(net: Path, capsys: Capture) -> None:
    words = ["search", "--model", str(net), "--machine", "p100x2", "--search", "fails"]
    said = error_of(capsys, *words, "--out", str(net.parent / "s.json"))
    assert said.startswith("fails in net.py raises AttributeError: 'SearchTask' object has no")
