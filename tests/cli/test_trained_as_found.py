"""What a strategy's file says of how its network is trained: taken unless an option wins."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Capture, error_of, json_of
from launch import legate_environment, run_checked

from flexlegion import SGD, Adam, AdamW, ParameterGroup, UserError
from flexlegion.cli.command import parser_of
from flexlegion.cli.how_trained import taken_from_file
from flexlegion.cli.main import MODULES, main
from flexlegion.cli.training import prepared
from flexlegion.objective.training import TrainingOptions, TrainingSpec, options_in

FOUND = ["--optimizer", "adam", "--clip-norm", "0.5", "--precision", "bf16", "--storage", "fp16"]
FOUND += ["--micro-batches", "2"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A strategy for the mlp, as it is trained by the options above."""
    path = tmp_path_factory.mktemp("found") / "s.json"
    words = ["--model", "mlp", "--strategy", "data", "--gpus", "2", *FOUND, "--out", str(path)]
    assert main(["strategy", *words]) == 0
    return path


def trained(file: Path, *words: str) -> tuple[TrainingSpec, str]:
    """How ``train`` would do it, and what it would say to have taken from the file."""
    its = ["train", "--model", "mlp", "--strategy", str(file), *words]
    args = parser_of(MODULES, "train").parse_args(its)
    training = prepared(args).network.training
    return training, taken_from_file(args, training)


@pytest.mark.parametrize("data", ["sample", "synthetic"])
def test_train_takes_it_from_the_file(file: Path, data: str) -> None:
    training, said = trained(file, "--data", data)
    assert training == TrainingSpec(
        "sparse_categorical_crossentropy", None, Adam(clip_norm=0.5), "bf16", "fp16", 2
    )
    others = "precision bf16, storage fp16, micro batches 2"
    assert said == f"optimizer adam with clip_norm 0.5, {others}"


def test_an_option_wins(file: Path) -> None:
    training, said = trained(file, "--optimizer", "sgd", "--storage", "fp32", "--momentum", "0.9")
    assert training.optimizer == SGD(momentum=0.9)
    assert (training.precision, training.storage) == ("bf16", "fp32")
    assert said == "precision bf16, micro batches 2"
    training, said = trained(file, "--lr", "0.1", "--precision", "fp32", "--clip-norm", "2")
    assert training.optimizer == Adam(lr=0.1, clip_norm=2.0)
    assert said == "optimizer adam, storage fp16, micro batches 2"
    with pytest.raises(UserError, match="--momentum goes with --optimizer sgd, not adam"):
        trained(file, "--momentum", "0.9")


def test_what_is_for_another_network_is_not_taken(file: Path) -> None:
    words = ["train", "--model", "lenet", "--strategy", str(file)]
    args = parser_of(MODULES, "train").parse_args(words)
    training = prepared(args).network.training
    assert training == TrainingSpec("sparse_categorical_crossentropy")
    assert taken_from_file(args, training) == ""


def test_simulations_take_the_same(file: Path, capsys: Capture) -> None:
    facts = json_of(capsys, "simulate", "--strategy", str(file), "--machine", "a100x2")
    found = json.loads(file.read_text())["found"]
    for key in ("optimizer", "hyperparameters", "loss", "precision", "storage", "micro_batches"):
        assert facts[key] == found[key]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"precision": 3}, "'found' has the precision 3, which is none"),
        ({"precision": "fp31"}, "unknown precision 'fp31' (did you mean 'fp32'?); "),
        ({"hyperparameters": [1]}, "'found' has the hyperparameters [1], which is none"),
        ({"hyperparameters": {"rho": 1}}, '"rho" with the value 1 is no hyper-parameter of adam'),
        ({"hyperparameters": {"groups": 1}}, '"groups" with the value 1 is no hyper-parameter of'),
        ({"hyperparameters": {"groups": [{"names": 1}]}}, '{"names": 1} is no parameter group'),
        ({"hyperparameters": {"groups": [{"rate": 1}]}}, '{"rate": 1} is no parameter group'),
        ({"micro_batches": "2"}, "'found' has the micro_batches \"2\", which is none"),
        ({"micro_batches": 0}, "the number of micro-batches is 1 to 4,096, but is 0"),
        ({"loss_weights": "2"}, "'found' has the loss_weights \"2\", which is none"),
    ],
)
def test_mistakes_of_a_file(
    file: Path, tmp_path: Path, capsys: Capture, changes: dict[str, Any], text: str
) -> None:
    document = json.loads(file.read_text())
    document["found"] |= changes
    path = tmp_path / "s.json"
    path.write_text(json.dumps(document))
    said = error_of(capsys, "simulate", "--strategy", str(path), "--machine", "a100x2")
    assert text in said


def test_facts_are_read_back() -> None:
    """Each field of a spec is an option of the functions, and a file can hold it."""
    spec = TrainingSpec(
        ["huber", "huber"],
        [1.0, 2.0],
        AdamW(
            lr=0.5,
            clip_norm=1.0,
            ema=0.9,
            groups=[
                ParameterGroup(["*.bias", "norm"], weight_decay=0),
                ParameterGroup(max_dims=2, lr=0.1),
            ],
        ),
        "tf32",
        "bf16",
        4,
    )
    assert set(vars(spec)) == set(TrainingOptions.__annotations__)
    assert TrainingSpec.of(**options_in(json.loads(json.dumps(spec.facts())), "s.json")) == spec
    assert TrainingSpec.of(**vars(spec)) == spec
    assert TrainingSpec.of(loss=None, optimizer=None, precision=None) == TrainingSpec()


@pytest.mark.legion
def test_training_says_what_it_took(tmp_path: Path) -> None:
    path, out = tmp_path / "s.json", tmp_path / "out.json"
    words = ["--model", "mlp", "--cpus", "2"]
    assert main(["strategy", *words, "--optimizer", "adam", "--out", str(path)]) == 0
    train = ["train", *words, "--data", "synthetic", "--epochs", "1", "--json", str(out)]
    started = [sys.executable, "-m", "flexlegion", *train, "--strategy", str(path)]
    done = run_checked(started, environment=legate_environment(), timeout=300)
    assert f"as {path} says: optimizer adam\n" in done.stdout
    assert json.loads(out.read_text())["ran"]["optimizer"] == "adam"
