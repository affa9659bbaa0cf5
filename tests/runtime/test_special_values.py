"""Layers and losses compute what PyTorch's do, values and gradients, of every kind of number.

At corners of formulas, of ties, zeros of both signs, infinities and NaN: a layer that makes a
number of NaN would hide that training diverges. (Subnormals count as zero: `test_subnormals.py`.)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from launch import run_legate
from pytorch_functions import FUNCTIONS as PLAIN
from special_values import (
    ELEMENTWISE,
    LOSS_SHAPES,
    LOSSES,
    OF_CHANNELS,
    POINTS,
    ROWS,
    SAMPLES,
    SHAPES,
    loss_data,
    over_rows,
)

pytestmark = pytest.mark.legion

WORKER = Path(__file__).with_name("special_values_worker.py")
Function = Callable[[torch.Tensor], torch.Tensor]
Saved = dict[str, np.ndarray]

FUNCTIONS: dict[str, Function] = {
    **PLAIN,
    "softplus": F.softplus,  # by its default threshold
    "detach": torch.detach,
    "clamp": lambda x: x.clamp(-1, 3),
    "clamp_below": lambda x: x.clamp(min=-1),
    "hardtanh_of_bounds": lambda x: F.hardtanh(x, -2, 6),
    "maximum": lambda x: torch.maximum(x, torch.ones_like(x)),
    "minimum": lambda x: torch.minimum(x, torch.ones_like(x)),
    "where": lambda x: torch.where(x > 1, x, 2 * x),
    "less": lambda x: (x < 1) + 2.0 * (x <= 1) + 4 * (x == 1),
    "cube": lambda x: x**3,
    "power": lambda x: x**2.5,
    "quotient": lambda x: 2 / x,
    "elu_of_slope": lambda x: F.elu(x, 0.3),
    "leaky_relu_of_slope": lambda x: F.leaky_relu(x, 0.3),
    "prelu": lambda x: F.prelu(x.unsqueeze(0), torch.tensor([0.3])).squeeze(0),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """What the worker saved."""
    file = tmp_path_factory.mktemp("special_values") / "saved.npz"
    run_legate(WORKER, "--out", file)
    with np.load(file) as arrays:
        return dict(arrays)


def differences(saved: Saved, key: str, function: Function, x: np.ndarray) -> list[str]:
    """Where a layer's values or its gradient differ from a function's of PyTorch."""
    given = torch.tensor(x, requires_grad=True)
    y = function(given)
    found = []
    if y.requires_grad:
        y.backward(torch.tensor(saved[f"{key}/labels"]))
    gradient = np.zeros_like(x) if given.grad is None else given.grad.numpy()
    for what, got, want in (
        ("value", saved[key], y.detach().numpy()),
        ("gradient", saved[f"{key}/gradient"], gradient),
    ):
        assert got.shape == want.shape, (key, what, got.shape, want.shape)
        close = np.isclose(got, want, rtol=2e-5, atol=2e-6, equal_nan=True)
        if what == "gradient":  # what NaN leads to is no number already
            close |= np.isnan(x) | (np.isnan(y.detach().numpy()) if y.shape == x.shape else False)
            close |= np.isnan(want) if "amax" in key else False
        places = x[~close] if got.shape == x.shape else np.argwhere(~close)
        found += [
            f"{key}: {what} {g} is not {w} at {p}"
            for g, w, p in zip(got[~close], want[~close], places, strict=True)
        ]
    return found


def test_functions_of_elements(saved: Saved) -> None:
    found = []
    for name in ELEMENTWISE:
        function = FUNCTIONS[name.removeprefix("layer_")]
        found += differences(saved, f"elementwise/{name}", function, POINTS)
    # PyTorch makes NaN of infinity here, as a product of it and 0.
    found = [line for line in found if line != "elementwise/gelu: value inf is not nan at inf"]
    assert not found, "\n".join(found)


CHANNELS: dict[str, Function] = {
    "batch_norm_relu": F.relu,
    "batch_norm_relu6": F.relu6,
    "batch_norm_silu": F.silu,
    "batch_norm_hardswish": F.hardswish,
    "max_pool": lambda x: F.max_pool1d(x.T.unsqueeze(0), 3, 1, 1)[0].T,
    "average_pool": lambda x: F.avg_pool1d(x.T.unsqueeze(0), 3, 1, 1)[0].T,
}
# Where oneDNN computes a ReLU with its layer, minus infinity becomes NaN, too.
FUSED = ("dense_relu", "conv1d_relu")


def test_layers_that_end_with_activations(saved: Saved) -> None:
    found = []
    for name in OF_CHANNELS:
        function = CHANNELS.get(name) or FUNCTIONS[name.split("_", 1)[1]]
        of = differences(saved, f"channels/{name}", function, POINTS.reshape(-1, 1))
        if name.startswith("batch_norm"):  # training normalises by the moments of all points
            of = [line for line in of if "gradient" not in line]
        if name == "max_pool":  # which element of a window with NaN has its gradient says nothing
            of = [line for line in of if not line.endswith(("at inf", "at -inf"))]
        if name in FUSED:
            of = [line for line in of if not line.endswith("at -inf")]
        found += of
    assert not found, "\n".join(found)


@pytest.mark.parametrize("shape", SHAPES)
def test_functions_of_rows(saved: Saved, shape: tuple[int, ...]) -> None:
    every = tuple(range(len(shape)))
    functions: dict[str, Function] = {
        "softmax": lambda x: F.softmax(x, -1),
        "log_softmax": lambda x: F.log_softmax(x, -1),
        "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
        "l2_normalize": lambda x: F.normalize(x, dim=-1),
    }
    kinds: dict[str, Callable[..., torch.Tensor]] = {
        "mean": torch.mean,
        "sum": torch.sum,
        "amax": torch.amax,
        "max": lambda x, d, keepdim=False: (
            x.reshape(-1).max(0).values
            if isinstance(d, tuple)
            else torch.max(x, d, keepdim=keepdim).values
        ),
    }
    for kind, reduce in kinds.items():
        functions[f"{kind}_last"] = lambda x, f=reduce: f(x, -1).reshape(shape[:-1] or ())
        functions[f"{kind}_kept"] = lambda x, f=reduce: f(x, -1, keepdim=True)
        functions[f"{kind}_first"] = lambda x, f=reduce: f(x, 0, keepdim=True)
        functions[f"{kind}_all"] = lambda x, f=reduce: f(x, every)
    group = "rows_" + "x".join(map(str, shape))
    found = []
    for name in over_rows(shape):
        found += differences(saved, f"{group}/{name}", functions[name], ROWS.reshape(shape))
    assert not found, "\n".join(found)


def test_losses_of_all_ranks(saved: Saved) -> None:
    functions = {
        "mean_squared_error": F.mse_loss,
        "mean_absolute_error": F.l1_loss,
        "huber": F.huber_loss,
        "logits": F.binary_cross_entropy_with_logits,
        "probabilities": F.binary_cross_entropy,
    }
    found = []
    for shape in LOSS_SHAPES:
        for loss in LOSSES:
            name = f"{loss}_{len(shape)}_{'x'.join(map(str, shape))}"
            x, labels = loss_data(name)
            for count in (SAMPLES, SAMPLES - 2):
                given = torch.tensor(x[:count], requires_grad=True)
                value = functions[loss](given, torch.tensor(labels[:count]))
                value.backward()
                assert given.grad is not None
                # The parameter of zeros that is subtracted belongs to all samples.
                want = given.grad.sum(0).numpy()
                got = saved[f"losses_{count}/{name}/gradient"].reshape(want.shape)
                key = f"losses_{count}/{name}"
                if not np.isclose(saved[key], value.item(), rtol=1e-5):
                    found.append(f"{key}: {saved[key]} is not {value.item()}")
                if not np.allclose(got, want, rtol=1e-4, atol=1e-6):
                    found.append(f"{key}: gradient {got} is not {want}")
    assert not found, "\n".join(found)
