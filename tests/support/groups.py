"""Networks that are trained with parameter groups and averages of weights, and their ways.

`reference` trains the same in PyTorch, by its parameter groups and its `AveragedModel`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from flexlegion import SGD, Adam, AdamW, Model, ParameterGroup
from flexlegion.objective.optimizers import Optimizer

Arrays = dict[str, npt.NDArray[Any]]

BATCH, SAMPLES, EPOCHS = 8, 20, 3  # the last batch is of four
EMA = 0.8
NORMS = ParameterGroup(max_dims=1, weight_decay=0.0)
HEAD = ParameterGroup(("out.*", "nothing.*"), lr=0.05, weight_decay=0.02)


@dataclass(frozen=True)
class Way:
    """How to train: as `Model.compile` takes it, and how PyTorch does the same."""

    optimizer: Optimizer
    torch: Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
    table: bool = False
    strategy: str = "data"
    micro_batches: int = 1


def _adamw(**numbers: Any) -> AdamW:
    return AdamW(lr=0.02, weight_decay=0.1, **numbers)


def _torch_adamw(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=0.02, weight_decay=0.1)


def _torch_sgd(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1)


def _torch_plain(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.1)


_NESTEROV = SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1, groups=[NORMS, HEAD])
_BOTH = _adamw(groups=(HEAD, NORMS), ema=EMA)
WAYS = {
    "adamw": Way(_adamw(groups=[HEAD, NORMS]), _torch_adamw),
    "sgd": Way(_NESTEROV, _torch_sgd, strategy="model"),
    "frozen": Way(
        Adam(lr=0.02, groups=[ParameterGroup("hidden.*", lr=0)]),
        lambda groups: torch.optim.Adam(groups, lr=0.02),
    ),
    "ema": Way(_adamw(ema=EMA), _torch_adamw, strategy="model"),
    "both": Way(_BOTH, _torch_adamw, strategy="data+zero3", micro_batches=2),
    # Plain SGD changes the rows alone that were looked up; averages go on in all rows.
    "table": Way(SGD(lr=0.1, ema=EMA), _torch_plain, table=True),
    "table decays": Way(
        SGD(lr=0.1, groups=[ParameterGroup("words.*", weight_decay=0.3)], ema=EMA),
        _torch_plain,
        table=True,
        strategy="single",
    ),
}


def schedule(step: int) -> float:
    """Of the learning rate."""
    return 1.0 / (1 + step)


def data(table: bool) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32]]:
    """Samples and labels."""
    rng = np.random.default_rng(7)
    x: npt.NDArray[Any] = rng.normal(size=(SAMPLES, 6)).astype(np.float32)
    if table:
        x = rng.integers(20, size=(SAMPLES, 6)).astype(np.int32)
    return x, rng.integers(3, size=SAMPLES).astype(np.int32)


def network(table: bool = False) -> Model:
    """Ours."""
    net = Model(BATCH, seed=3)
    if table:
        x = net.flatten(net.embedding(net.input((6,), "int32"), 20, 4, name="words"))
    else:
        x = net.layer_norm(net.dense(net.input((6,)), 8, name="hidden"), name="norm")
    net.dense(x, 3, name="out")
    return net


def names(table: bool) -> dict[str, str]:
    """Our weights' names, of PyTorch's parameters."""
    if table:
        return {"0.weight": "words.table", "2.weight": "out.kernel", "2.bias": "out.bias"}
    ours = {"0": "hidden", "1": "norm", "2": "out"}
    found = {f"{i}.weight": f"{name}.kernel" for i, name in ours.items()}
    found |= {f"{i}.bias": f"{name}.bias" for i, name in ours.items()}
    return found | {"1.weight": "norm.gamma", "1.bias": "norm.beta"}


def reference(way: Way, initial: Arrays) -> tuple[Arrays, Arrays, list[float]]:
    """Weights, averages, and the averages' losses over the data after each epoch, by PyTorch."""
    first: list[nn.Module] = [nn.Linear(6, 8), nn.LayerNorm(8)]
    if way.table:
        first = [nn.Embedding(20, 4), nn.Flatten()]
    module = nn.Sequential(*first, nn.Linear(24 if way.table else 8, 3))
    ours = names(way.table)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(initial[ours[name]]))
    groups: list[dict[str, Any]] = [{"params": []} for _ in range(1 + len(way.optimizer.groups))]
    for group, its in zip(groups[1:], way.optimizer.groups, strict=True):
        numbers = {"lr": its.lr, "weight_decay": its.weight_decay}
        group |= {name: value for name, value in numbers.items() if value is not None}
    for name, parameter in module.named_parameters():
        group = 0
        for i, its in reversed(list(enumerate(way.optimizer.groups, 1))):
            layer = ours[name].split(".")[0]
            named = "*" in its.names or any(p.startswith(f"{layer}.") for p in its.names)
            small = its.max_dims is None or parameter.ndim <= its.max_dims
            group = i if named and small else group
        groups[group]["params"].append(parameter)
    optimizer = way.torch(groups)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    averaged = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(way.optimizer.ema or EMA))
    x, y = map(torch.from_numpy, data(way.table))
    losses = []
    for _ in range(EPOCHS):
        for i in range(0, SAMPLES, BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                module(x[i : i + BATCH]), y[i : i + BATCH].long()
            ).backward()
            optimizer.step()
            rates.step()
            averaged.update_parameters(module)
        with torch.no_grad():
            losses.append(float(nn.functional.cross_entropy(averaged(x), y.long())))

    def arrays(its: nn.Module) -> Arrays:
        return {ours[name]: p.detach().numpy() for name, p in its.named_parameters()}

    return arrays(module), arrays(averaged.module), losses
