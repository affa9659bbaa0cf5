"""Where nobody says a loss: one default, on all ways in, and a note if it is a guess."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Capture
from launch import legate_environment, run_checked, run_legate

import flexlegion as fl
from flexlegion.cli.command import parser_of
from flexlegion.cli.main import MODULES, main
from flexlegion.networks.network import Network
from flexlegion.objective.losses import DEFAULT_LOSS

GUESS = f"note: trained with {DEFAULT_LOSS} by default, as neither the user"
MODEL = """
from flexlegion import Model


def build():
    model = Model(8)
    model.{last}(model.input((16,)){units}, name="last")
    return model
"""
IN_PROCESS = {
    "simulate": [],
    "explain": ["data"],
    "report": ["data", "--out", "FOLDER/out.html"],
    "export": ["data", "--to", "dtensor", "--out", "FOLDER/out.py"],
    "search": ["--out", "FOLDER/out.json", "--proposals", "5", "--chains", "1"],
    "compare": ["--proposals", "5", "--chains", "1"],
    "what-if": ["--vary", "flops=x1,x2", "--proposals", "5", "--chains", "1"],
    "divide": [],
    "fits": ["--most-micro-batches", "1"],
    "plan": [],
    "strategy": ["--out", "FOLDER/out.json"],
}
FEW = ["--rounds", "1", "--trial-budget", "10ms", "--profile-db", "FOLDER/db", "--json"]
ON_LEGION = {
    "train": ["--epochs", "1", "--json", "FOLDER/out.json"],
    "evaluate": ["--weights", "FOLDER/own.npz", "--json"],
    "tune": ["--budget", "100ms", "--finalists", "1", *FEW, "--out", "FOLDER/out.json"],
    "accuracy": ["--strategies", "2", *FEW],
}


def words_of(command: str, given: list[str], folder: Path, last: str = "dense") -> list[str]:
    text = MODEL.format(last=last, units=", 4" if last == "dense" else "")
    (folder / "own.py").write_text(text)
    np.savez(folder / "own.npz", **{"last.kernel": np.zeros((4, 16)), "last.bias": np.zeros(4)})
    its = [word.replace("FOLDER", str(folder)) for word in given]
    return [command, *its, "--model", f"{folder}/own.py:build"]


def dense() -> fl.Model:
    model = fl.Model(8)
    model.dense(model.input((16,)), 4)
    return model


def test_every_command_that_takes_a_loss_is_here() -> None:
    commands = next(a for a in parser_of(MODULES)._actions if a.dest == "command").choices
    assert isinstance(commands, dict)
    takes = {
        name
        for name, parser in commands.items()
        if any(action.dest == "loss" for action in parser._actions)
    }
    assert takes == {*IN_PROCESS, *ON_LEGION}


@pytest.mark.parametrize("command", IN_PROCESS)
def test_commands(command: str, tmp_path: Path, capsys: Capture) -> None:
    own = ["--machine", "p100x2"]
    say = [] if command in ("plan", "strategy") else ["--json"]
    words = [*words_of(command, IN_PROCESS[command], tmp_path), *own, *say]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert err.count(GUESS) == 1
    if command == "strategy":
        assert json.loads((tmp_path / "out.json").read_text())["found"]["loss"] == DEFAULT_LOSS
    elif say:
        assert json.loads(out)["loss"] == DEFAULT_LOSS
    assert main([*words, "--loss", "mean_squared_error"]) == 0
    assert "by default" not in capsys.readouterr().err


def test_a_softmax_tells(tmp_path: Path, capsys: Capture) -> None:
    words = words_of("simulate", ["--machine", "p100x2", "--json"], tmp_path, "softmax")
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["loss"] == DEFAULT_LOSS
    assert "by default" not in err


@pytest.mark.parametrize(
    "way",
    [
        Network.of,
        lambda model: fl.simulate(model, "p100x2").setting.network,
        lambda model: fl.explain(model, "p100x2", "data").setting.network,
        lambda model: fl.report_on(model, "p100x2", "data").simulated.setting.network,
        lambda model: fl.search(model, "p100x2", proposals=5, chains=1).setting.network,
        lambda model: fl.compare(model, "p100x2", proposals=5, chains=1).found.setting.network,
        lambda model: fl.export(model, "p100x2", "data").setting.network,
    ],
)
def test_functions(way: Callable[[fl.Model], Network], capsys: Capture) -> None:
    model = dense()
    assert way(model).training.loss == DEFAULT_LOSS
    assert capsys.readouterr().err.count(GUESS) == 1
    model.loss = "mean_squared_error"
    assert way(model).training.loss == "mean_squared_error"
    assert "by default" not in capsys.readouterr().err


@pytest.mark.legion
@pytest.mark.parametrize("command", ON_LEGION)
def test_commands_that_train(command: str, tmp_path: Path) -> None:
    words = [*words_of(command, ON_LEGION[command], tmp_path), "--cpus", "1"]
    started = [sys.executable, "-m", "flexlegion", *words]
    done = run_checked(started, environment=legate_environment(), timeout=300)
    facts: dict[str, Any]
    if command == "train":
        facts = json.loads((tmp_path / "out.json").read_text())["ran"]
    else:
        facts = json.loads(done.stdout)
    assert facts["loss"] == DEFAULT_LOSS
    assert done.stderr.count(GUESS) == 1


@pytest.mark.legion
def test_compile(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    lines = ["from own import build", "model = build()", "model.compile()"]
    script.write_text("\n".join([*lines, "print('loss:', model.about()['loss'])"]))
    words_of("train", [], tmp_path)
    done = run_legate(script, cpus=1, timeout=120)
    assert f"loss: {DEFAULT_LOSS}" in done.stdout
    assert done.stderr.count(GUESS) == 1
