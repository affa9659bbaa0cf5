"""Imported models train as PyTorch's do: losses, and the change of every parameter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from imports_case import CASES, Case, differences, network, reference
from launch import ROOT, run_legate
from pytorch.small import trained

pytestmark = pytest.mark.legion

SMALL = (
    "regnet_y",
    "squeezenet",
    "vit_b_16",
    "bert",
    "gpt2",
    "t5",
    "llama",
    "tagger",
    "mixture",
    "mixtral",
    "unet",
    "dlrm",
    "swin_t",
    "decoder",
    "gated_tagger",
)
STRATEGIES = ("single", "random:1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights to begin with, and what the worker saved."""
    folder = tmp_path_factory.mktemp("imports")
    for name in SMALL:
        module, _ = network(name, CASES.get(name, Case()))
        torch.save(module.state_dict(), folder / f"{name}.pt")
    worker = ROOT / "scripts" / "bench" / "workers" / "imports_worker.py"
    run_legate(worker, folder, ",".join(SMALL), *STRATEGIES, cpus=3, timeout=600)
    return folder


@pytest.mark.parametrize("name", SMALL)
def test_trains_as_pytorch_does(name: str, folder: Path) -> None:
    with np.load(folder / f"{name}.npz") as saved:
        mine = dict(saved)
    assert "error" not in mine, str(mine["error"])
    case = CASES.get(name, Case())
    module, example = trained(name, case.seed)
    module.load_state_dict(torch.load(folder / f"{name}.pt"))
    expected = reference(module, example, case.rate)
    for strategy in STRATEGIES:
        _, _, failures = differences(mine, strategy, expected)
        assert not failures, f"{strategy}: {failures}"
