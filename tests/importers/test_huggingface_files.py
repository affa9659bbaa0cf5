"""Weights in files as Hugging Face's `save_pretrained` writes them, random ones of small models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launch import BIN, ROOT, legate_environment, run_checked
from pytorch.models import MODELS

import flexlegion as fl
from flexlegion.training.checkpoints.weights import fitted, read_weights

# gpt2 and t5 share weights between layers, of which the file has one; bert's file is loaded into
# the same network without its head, too.
NAMES = ("gpt2", "bert", "t5")


def moved(name: str, seed: int) -> tuple[Any, Any]:
    """A network, none of whose parameters are zeros and ones, and its inputs."""
    module, example = MODELS[name](seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return module, example


def weights_of(model: fl.Model) -> dict[str, Any]:
    """Those that it begins with."""
    return {
        tensor.name: tensor.initializer(tensor.shape, tensor.name, 0, tensor.dtype)
        for tensor in model.graph.weights
        if tensor.initializer is not None
    }


def loaded(file: Path, model: fl.Model) -> dict[str, Any]:
    """What `Model.load_weights` sets."""
    shapes = {tensor.name: tensor.shape for tensor in model.graph.weights}
    needed = {tensor.name for tensor in model.graph.weights if not tensor.constant}
    return fitted(read_weights(file), shapes, needed, model.origin, str(file))


@pytest.mark.parametrize("name", NAMES)
def test_the_file_has_the_modules_weights(name: str, tmp_path: Path) -> None:
    module, example = moved(name, seed=1)
    expected = weights_of(fl.from_torch(module, example))
    module.save_pretrained(tmp_path)
    other = fl.from_torch(moved(name, seed=2)[0], example)
    weights = loaded(tmp_path / "model.safetensors", other)
    trained = {tensor.name for tensor in other.graph.trained_weights}
    assert trained <= weights.keys()
    assert all((weights[key] == expected[key]).all() for key in weights)
    before = weights_of(other)
    assert not any((weights[key] == before[key]).all() for key in trained)


def test_in_half_precision_into_the_network_without_its_head(tmp_path: Path) -> None:
    module, example = moved("bert", seed=1)
    expected = weights_of(fl.from_torch(module.bert, example))
    module.to(torch.bfloat16).save_pretrained(tmp_path)
    body = fl.from_torch(moved("bert", seed=2)[0].bert, example)
    weights = loaded(tmp_path / "model.safetensors", body)
    assert {tensor.name for tensor in body.graph.trained_weights} <= weights.keys()
    for key, value in weights.items():
        np.testing.assert_allclose(value, expected[key], rtol=2**-8)


@pytest.mark.legion
def test_train_begins_with_them(tmp_path: Path) -> None:
    """What the command saves after a training that changes nothing is what it loaded."""
    module, example = moved("gpt2", seed=1)
    module.save_pretrained(tmp_path)
    source = f"{ROOT / 'scripts' / 'bench' / 'imported.py'}:gpt2"
    command = [str(BIN / "flexlegion"), "train", "--model", source, "--cpus", "1", "--epochs", "1"]
    command += ["--batch-size", "4", "--samples", "4", "--optimizer", "sgd"]
    command += ["--lr", "1e-30", "--weights", str(tmp_path / "model.safetensors")]
    command += ["--save-weights", str(tmp_path / "after.npz")]
    environment = {k: v for k, v in legate_environment().items() if k != "LEGATE_CONFIG"}
    run_checked(command, environment=environment, timeout=200)
    expected = weights_of(fl.from_torch(module, example))
    with np.load(tmp_path / "after.npz") as after:
        assert set(after) == set(expected)
        assert all((after[key] == expected[key]).all() for key in expected)
