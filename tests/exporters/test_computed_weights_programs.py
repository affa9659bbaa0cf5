"""Programs of layers whose weights are computed: merged adapters, normalised kernels."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from arranged_modules import MSE, Arranged, Written
from arranged_programs import imported, write, wrong
from exported import run
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import flexlegion as fl

DEVICES, SEEDS = 4, 2


def cases() -> dict[str, Arranged]:
    """By name."""
    torch.manual_seed(0)
    steps, images = torch.randn(4, 4, 8), torch.randn(4, 4, 6, 6)
    w, a, b = (nn.Parameter(torch.randn(*shape)) for shape in ((8, 8), (2, 8), (8, 2)))
    adapter = Written(lambda n, x: F.linear(x, n.w + n.b @ n.a), w=w, a=a, b=b)
    squared = Written(lambda n, x: F.linear(x, n.w.t() @ n.w).relu(), w=copy.deepcopy(w))
    filters = weight_norm(nn.Conv2d(4, 8, 3, padding=1))
    groups = weight_norm(nn.Conv2d(4, 8, 3, padding=1, groups=4))
    image = (4, 6, 6, 8)
    return {
        "adapter": Arranged(adapter, (steps,)),
        "biased": Arranged(weight_norm(nn.Linear(8, 4)), (steps,)),
        "twice": Arranged(squared, (steps,)),
        "filters": Arranged(nn.Sequential(filters, nn.ReLU()), (images,), MSE, image),
        "groups": Arranged(groups, (images,), MSE, image),
        "lines": Arranged(weight_norm(nn.Conv1d(4, 8, 3)), (steps,), MSE, (4, 6, 8)),
    }


CASES = cases()


@pytest.fixture(scope="module", params=["dtensor", "jax"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the results of all programs for a target are, of several strategies each."""
    folder = tmp_path_factory.mktemp(request.param)
    names = []
    for name, case in CASES.items():
        for seed in range(SEEDS):
            names.append(f"{name}_{seed}")
            write(imported(case), case, folder / names[-1], request.param, DEVICES, seed)
            assert "of_weights(" in (folder / f"{names[-1]}.py").read_text()
    run(request.param, DEVICES, folder, names)
    return folder


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", CASES)
def test_as_in_the_module(name: str, seed: int, programs: Path) -> None:
    """The first loss, outputs and gradients in several processes are PyTorch's."""
    case = CASES[name]
    assert wrong(imported(case), case, programs / f"{name}_{seed}") == []


def test_a_type_without_a_function_is_called_by_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by that of the operator that gives it its weights."""
    from flexlegion.exporters import torch_layers

    monkeypatch.delattr(torch_layers, "conv1d")
    with pytest.raises(fl.UserError, match="dtensor has no function here for operators conv1d"):
        fl.export(imported(CASES["lines"]), "p100x2", "data", "dtensor")
