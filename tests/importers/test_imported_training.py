"""Imported models train as PyTorch's do: losses, and the change of every parameter."""

from __future__ import annotations

import numpy as np
import pytest
from imports_case import Arrays, differences, reference
from launch import ROOT, run_legate
from torch_models import MODELS

pytestmark = pytest.mark.legion

SMALL = ("squeezenet", "vit_b_16", "bert", "gpt2", "t5", "llama", "tagger")
STRATEGIES = ("single", "random:1")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    """What the worker saved."""
    file = tmp_path_factory.mktemp("imports") / "saved.npz"
    worker = ROOT / "scripts" / "bench" / "imports_worker.py"
    run_legate(worker, file, ",".join(SMALL), *STRATEGIES, cpus=3, timeout=600)
    with np.load(file) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("name", SMALL)
def test_trains_as_pytorch_does(name: str, saved: Arrays) -> None:
    mine = {k.removeprefix(f"{name}/"): v for k, v in saved.items() if k.startswith(f"{name}/")}
    assert "error" not in mine, str(mine["error"])
    module, example = MODELS[name]()
    orders = {k.removeprefix("order/"): list(v) for k, v in mine.items() if k.startswith("order/")}
    expected = reference(module, example, orders)
    for strategy in STRATEGIES:
        _, _, failures = differences(mine, strategy, expected)
        assert not failures, f"{strategy}: {failures}"
