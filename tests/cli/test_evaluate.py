"""``flexlegion evaluate`` and ``predict``: a trained model on data, beside NumPy and PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Capture, error_of
from commands_on_legion import Done, run_all

from flexlegion.training.checkpoints.files import folders

pytestmark = pytest.mark.legion

NET = """
import flexlegion as fl


def model(batch_size: int = 16, width: int = 8) -> fl.Model:
    net = fl.Model(batch_size)
    x = net.input((6,), name="x")
    x = net.dense(x, width, activation="relu", name="hidden")
    net.softmax(net.dense(x, 3, name="classes"), name="class")
    return net


def two(batch_size: int = 16) -> fl.Model:
    net = fl.Model(batch_size)
    x = net.input((6,), name="x")
    net.set_outputs([net.dense(x, 2, name="pair"), net.dense(x, 4, name="four")])
    net.loss = "mean_squared_error"
    return net


def module(batch_size: int = 16):
    import torch

    torch.manual_seed(3)
    layers = torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)
    return torch.nn.Sequential(*layers), (torch.zeros(batch_size, 6),)
"""
NUMBER = 90  # a fifth is 18: a batch of 16, and a rest of 2


# Mistakes that are found on Legion: the command's words, and its sentence.
MISTAKES = (
    ("evaluate DATA", "has its initial weights alone, with which nothing was trained; give --wei"),
    ("evaluate DATA --weights w.npz --size width=9", "'hidden.kernel' has shape [8, 6]"),
    ("evaluate DATA --weights w.npz --averages", "moving averages are in checkpoints; a file has"),
    (
        "evaluate UNKNOWN --weights w.npz",
        "no label of the samples counts (all are -1 or ignored), so that there is no loss",
    ),
    ("train UNKNOWN --epochs 1", "no label of the training data counts (all are -1 or ignored)"),
    ("evaluate BARE --weights w.npz", "the model needs an array 'labels' (or y)"),
    ("evaluate TESTED --weights w.npz --part all", "choose --part test or --part train"),
    ("predict TESTED --weights w.npz --out none.npy", "choose --part test or --part train"),
    (
        "predict DATA --weights w.npz --part test --out none.npy",
        "--part test goes with data that bring a test set of their own",
    ),
    (
        "predict TWO --weights two.npz --out none.npy",
        "an .npy file has one array, but the model has 2 outputs",
    ),
)
GOOD = {
    "as trained": "evaluate DATA --weights kept --averages --strategy model --json",
    "all": "evaluate DATA --weights w.npz --part all --json",
    "half": "evaluate DATA --weights w.npz --held-out 0.5 --seed 4 --part train --json",
    "predicted": "predict BARE --weights kept --averages --strategy model --out p.npy --json",
    "tested": "predict TESTED --weights w.npz --part test --out tested.npy --json",
    "module": "predict MODULE --out p.parquet --json",
    "two": "predict TWO --weights two.npz --out two_out.npz --json",
    "other": "evaluate OTHER --weights kept",
}
FILES = ("w.npz", "two.npz", "kept", "none.npy", "p.npy", "tested.npy", "p.parquet", "two_out.npz")


def words_of(command: str, folder: Path) -> list[str]:
    """A command's words, with the paths of files, models and their data."""
    data = {
        "DATA": ("net.py:model", "data.npz"),
        "BARE": ("net.py:model", "bare.npz"),
        "UNKNOWN": ("net.py:model", "unknown.npz"),
        "TESTED": ("net.py:model", "tested.npz"),
        "TWO": ("net.py:two", "bare.npz"),
        "MODULE": ("net.py:module", "bare.npz"),
        "OTHER": ("other.py:model", "data.npz"),
    }
    words: list[str] = []
    for word in command.split():
        if word in data:
            model, file = data[word]
            words += ["--model", f"{folder}/{model}", "--data", f"{folder}/{file}"]
        else:
            words.append(f"{folder}/{word}" if word in FILES else word)
    return words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, weights and data."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "net.py").write_text(NET)
    (folder / "other.py").write_text(NET.replace('activation="relu"', 'activation="tanh"'))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUMBER, 6)).astype(np.float32)
    y = (x[:, :3].argmax(1)).astype(np.int32)
    np.savez(folder / "data.npz", x=x, y=y)
    np.savez(folder / "tested.npz", x=x, y=y, x_test=x[:21], y_test=y[:21])
    np.savez(folder / "bare.npz", x=x)
    np.savez(folder / "unknown.npz", x=x, y=np.full(NUMBER, -1))
    shapes = {"pair.kernel": (2, 6), "pair.bias": (2,), "four.kernel": (4, 6), "four.bias": (4,)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    np.savez(folder / "two.npz", **arrays)
    return folder


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, Done]:
    """All commands on one rank, after a training that writes a checkpoint and weights."""
    train = ["train", *words_of("DATA", folder), "--epochs", 4, "--optimizer", "adam", "--lr", 0.02]
    train += ["--ema", 0.7, "--group", "*.bias:lr=0.01", "--checkpoint", folder / "kept"]
    train += ["--save-weights", folder / "w.npz", "--json", folder / "trained.json"]
    commands = GOOD | dict(MISTAKES_BY_COMMAND)
    ran = run_all([train, *(words_of(one, folder) for one in commands.values())], folder)
    assert ran[0].status == 0, ran[0].err
    return dict(zip(commands, ran[1:], strict=True))


MISTAKES_BY_COMMAND = {command: command for command, _ in MISTAKES}


def expected(folder: Path) -> np.ndarray:
    """What the weights make of all samples, by NumPy in double precision."""
    weights = {name: array.astype(float) for name, array in np.load(folder / "w.npz").items()}
    x = np.load(folder / "data.npz")["x"].astype(float)
    hidden = np.maximum(x @ weights["hidden.kernel"].T + weights["hidden.bias"], 0)
    logits = hidden @ weights["classes.kernel"].T + weights["classes.bias"]
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def test_as_training_measured(folder: Path, done: dict[str, Done]) -> None:
    """Split otherwise, the test part has the figures of training's end: those of averages."""
    trained = json.loads((folder / "trained.json").read_text())
    found = done["as trained"].facts
    assert (found["part"], found["samples"]) == ("test", 18)
    assert found["metrics"] == {
        "loss": pytest.approx(trained["loss"], rel=1e-5),
        "accuracy": pytest.approx(trained["accuracy"]),
    }
    assert (found["devices"], found["strategy"]) == (["cpu:0", "cpu:1"], "strategy 'model'")
    assert done["half"].facts["samples"] == 45


@pytest.fixture(scope="module")
def by_ranks(folder: Path, done: dict[str, Done]) -> list[Done]:
    """The same on two ranks."""
    assert done
    predict = [*words_of("predict BARE --weights w.npz --json", folder), "--out"]
    return run_all([words_of(GOOD["all"], folder), [*predict, folder / "ranks.npz"]], folder, 2)


@pytest.mark.parametrize("ranks", [1, 2])
def test_all_samples(folder: Path, done: dict[str, Done], by_ranks: list[Done], ranks: int) -> None:
    """The last batch of 10 counts its own samples alone; on two ranks as well."""
    its = done["all"] if ranks == 1 else by_ranks[0]
    y, probabilities = np.load(folder / "data.npz")["y"], expected(folder)
    assert (its.facts["ranks"], its.facts["samples"]) == (ranks, NUMBER)
    assert its.facts["metrics"]["loss"] == pytest.approx(
        -np.log(probabilities[np.arange(NUMBER), y]).mean(), rel=1e-5
    )
    right = (probabilities.argmax(1) == y).mean()
    assert its.facts["metrics"]["accuracy"] == pytest.approx(right)


def test_predictions(folder: Path, done: dict[str, Done]) -> None:
    """A row a sample, in the order of the file, which needs no labels."""
    assert done["predicted"].facts["outputs"] == {"class": [NUMBER, 3]}
    assert np.load(folder / "p.npy").dtype == np.float32
    assert np.allclose(np.load(folder / "p.npy"), expected(folder), atol=1e-6)
    assert done["tested"].status == 0
    assert np.allclose(np.load(folder / "tested.npy"), expected(folder)[:21], atol=1e-6)


def test_predictions_of_ranks(folder: Path, by_ranks: list[Done]) -> None:
    assert by_ranks[1].facts["ranks"] == 2
    assert np.allclose(np.load(folder / "ranks.npz")["class"], expected(folder), atol=1e-6)


def test_imported_module(folder: Path, done: dict[str, Done]) -> None:
    """The weights that it was imported with, beside PyTorch's outputs; a column of lists."""
    import torch
    from pyarrow import parquet

    assert done["module"].status == 0, done["module"].err
    assert "loss" not in done["module"].err  # of which there is none, and none is needed
    assert "loss" not in done["module"].facts
    names: dict[str, Any] = {}
    exec(NET, names)
    with torch.no_grad():
        outputs = names["module"]()[0](torch.from_numpy(np.load(folder / "bare.npz")["x"]))
    (column,) = parquet.read_table(folder / "p.parquet").columns
    assert np.allclose(np.stack(column.to_numpy()), outputs.numpy(), atol=1e-6)


def test_several_outputs(folder: Path, done: dict[str, Done]) -> None:
    assert done["two"].facts["outputs"] == {"pair": [NUMBER, 2], "four": [NUMBER, 4]}
    x, weights = np.load(folder / "bare.npz")["x"], np.load(folder / "two.npz")
    for name, array in np.load(folder / "two_out.npz").items():
        wanted = x @ weights[f"{name}.kernel"].T + weights[f"{name}.bias"]
        assert np.allclose(array, wanted, atol=1e-5)


def test_checkpoint_of_another_network(folder: Path, done: dict[str, Done]) -> None:
    """Its weights fit all the same, so that is told."""
    newest, its = folders(folder / "kept")[-1], done["other"]
    assert (
        f"note: {newest}: it has moving averages of the weights, too; --averages takes" in its.err
    )
    assert f"note: {newest}: it was trained as another network: operator 'hidden" in its.err
    first, second = its.out.splitlines()
    assert first.endswith(f"weights of {newest}: 18 samples to test with")
    assert second.startswith("loss ")


@pytest.mark.parametrize(("command", "sentence"), MISTAKES)
def test_mistakes(done: dict[str, Done], folder: Path, command: str, sentence: str) -> None:
    assert sentence in done[command].sentence
    assert not (folder / "none.npy").exists()


def test_mistakes_before_legion(capsys: Capture, folder: Path) -> None:
    for command, sentence in (
        ("evaluate DATA --weights nothing.npz", "there is no such file of weights"),
        ("evaluate DATA --part all --held-out 0.5", "--held-out divides the data, and --part all"),
        ("evaluate DATA --averages", "--averages goes with --weights"),
        ("evaluate DATA --seed -1", "--seed has to be at least 0"),
        ("evaluate DATA --part some", "--part 'some' does not exist; choose one of test, train"),
        ("predict DATA --out p.csv", "predictions are written as .npy, .npz, .parquet"),
    ):  # fmt: skip
        assert sentence in error_of(capsys, *words_of(command, folder))
