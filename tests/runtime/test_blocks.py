"""Blocks of Llama's and T5's kind, split in many ways on three processors, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from blocks import BLOCKS, CHANNELS, GROUPS, HEADS, angles, buckets
from launch import run_legate
from networks import BATCH, Network

pytestmark = pytest.mark.legion

STRATEGIES = ("data", "random:1", "random:2", "random:3")
TOLERANCE = 1e-4  # of single precision, by norms

Arrays = dict[str, npt.NDArray[Any]]
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    """What the worker saved."""
    file = tmp_path_factory.mktemp("blocks") / "saved.npz"
    run_legate(Path(__file__).with_name("blocks_worker.py"), file, *STRATEGIES, cpus=3)
    with np.load(file) as arrays:
        return dict(arrays)


def of_kind(arrays: Arrays, prefix: str) -> Arrays:
    """Those of a prefix, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def normalised(w: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], w[f"{name}.gamma"], 1e-6)


def heads(w: Weights, name: str, x: torch.Tensor, count: int) -> torch.Tensor:
    """PyTorch's heads come before the positions."""
    y = F.linear(x, w[f"{name}.kernel"])
    return y.unflatten(-1, (count, CHANNELS)).transpose(1, 2)


def llama(w: Weights, tokens: torch.Tensor) -> torch.Tensor:
    cos, sin = (torch.from_numpy(array).double() for array in angles())

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    x = F.embedding(tokens, w["embed.table"])
    y = normalised(w, "norm1", x)
    q, k = turned(heads(w, "q", y, HEADS)), turned(heads(w, "k", y, GROUPS))
    v = heads(w, "v", y, GROUPS)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x = x + F.linear(y.transpose(1, 2).flatten(2), w["o.kernel"])
    y = normalised(w, "norm2", x)
    y = F.silu(F.linear(y, w["gate.kernel"])) * F.linear(y, w["up.kernel"])
    x = x + F.linear(y, w["down.kernel"])
    return F.linear(normalised(w, "norm3", x), w["logits.kernel"])


def t5(w: Weights, tokens: torch.Tensor) -> torch.Tensor:
    x = F.embedding(tokens, w["embed.table"])
    distance = torch.from_numpy(buckets()).long()
    bias = F.embedding(distance, w["distance.table"]).permute(2, 0, 1)[None]
    bias = bias + torch.where(tokens > 0, 0.0, -1e30)[:, None, None]
    later = torch.ones(bias.shape[-2:]).triu(1).bool()
    for i, mask in enumerate((bias, bias.masked_fill(later, -torch.inf))):
        y = normalised(w, f"norm{i}a", x)
        q, k, v = (heads(w, f"{part}{i}", y, HEADS) for part in "qkv")
        y = F.scaled_dot_product_attention(q, k, v, mask, scale=1.0)
        x = x + F.linear(y.transpose(1, 2).flatten(2), w[f"o{i}.kernel"])
        y = F.linear(normalised(w, f"norm{i}b", x), w[f"wide{i}.kernel"]).relu()
        x = x + F.linear(y, w[f"narrow{i}.kernel"])
    return F.linear(normalised(w, "norm", x), w["logits.kernel"])


TWINS: dict[str, Callable[[Weights, torch.Tensor], torch.Tensor]] = {"llama": llama, "t5": t5}


def reference(name: str, network: Network, initial: Arrays) -> Arrays:
    """What PyTorch makes of the same weights and samples, in double precision."""
    weights = {
        key: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for key, value in initial.items()
        if not key.startswith("constant")
    }
    optimizer = torch.optim.SGD(list(weights.values()), network.optimizer.lr)
    tokens, labels = map(torch.from_numpy, network.data(network.iterations * BATCH))
    arrays: Arrays = {}
    for step in range(network.iterations):
        rows = slice(step, None, network.iterations)
        logits = TWINS[name](weights, tokens[rows].long())
        loss = F.cross_entropy(logits.flatten(0, 1), labels[rows].flatten().long(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        arrays[f"loss/{step}"] = np.array(loss.item())
        for key, weight in weights.items() if step == 0 else ():
            assert weight.grad is not None
            arrays[f"gradient/{key}"] = weight.grad.numpy().copy()
        optimizer.step()
    return arrays | {f"final/{key}": weight.detach().numpy() for key, weight in weights.items()}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", BLOCKS)
def test_agrees(name: str, strategy: str, saved: Arrays) -> None:
    """Losses, each weight's gradient, and its change in three steps."""
    actual = of_kind(saved, f"{name}/{strategy}/")
    initial = of_kind(actual, "initial/")
    expected = reference(name, BLOCKS[name], initial)
    assert of_kind(expected, "gradient/").keys() == of_kind(actual, "gradient/").keys()
    for key, value in expected.items():
        before = initial[key.removeprefix("final/")] if key.startswith("final/") else 0.0
        change = value - before
        error = np.linalg.norm(actual[key] - value)
        assert error <= TOLERANCE * np.linalg.norm(change), key
