"""Operations that are read or lowered as others, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from beside_torch import assert_same
from torch import nn
from torch.nn import functional as F

import flexlegion as fl
from flexlegion.base.errors import UserError

Body = Callable[..., torch.Tensor]


class Net(nn.Module):
    """A dense and a recurrent layer, parameters, and what to do with them."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.dense, self.recurrent = nn.Linear(4, 4), nn.RNN(4, 3, batch_first=True)
        self.vector, self.blocks = (nn.Parameter(torch.randn(5, *rest)) for rest in ((), (2, 4)))
        self.square = nn.Parameter(torch.randn(16))
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, self.dense(x), x)


def written(y: torch.Tensor, places: object, value: object) -> torch.Tensor:
    """A tensor with values at some places."""
    z = y * 1
    z[places] = value  # type: ignore[index, assignment]
    return z + y


def several(y: torch.Tensor, x: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """A vector that is expanded, for several readers."""
    rows = vector.expand(y.shape[0], 5, 4)
    return (y * rows).softmax(-1) * (x * torch.sigmoid(rows)).softmax(-1) + rows


CASES: dict[str, Body] = {
    "einsum": lambda _, y, x: torch.einsum("nij,nkj->nik", y, x),
    "cosine": lambda _, y, x: F.cosine_similarity(y, x, dim=-1),
    "gated": lambda _, y, x: F.glu(y) + x[..., :2],
    "log of sum of exp": lambda _, y, x: y.logsumexp(-1) + x[..., 0],
    "recurrent": lambda n, y, x: n.recurrent(y)[0] + x[..., :3],
    "repeated": lambda _, y, x: y.repeat(1, 2, 1) + x.repeat_interleave(2, 1),
    "differences": lambda _, y, x: y.diff(dim=1) + x[:, 1:],
    "triangle": lambda _, y, x: (y @ x.mT).tril() + (x @ y.mT).triu(1),
    "variance": lambda _, y, __: y.var(-1) + y.std((1, 2), keepdim=True, correction=0)[:, 0],
    "powers": lambda _, y, x: (y.abs() + 1) ** 1.5 + (x.abs() + 0.5) ** y + 2**y,
    "shrunk": lambda _, y, x: (
        F.hardshrink(y, 0.2) + F.softshrink(x * y, 0.1) + F.threshold(y, 0, 2)
    ),
    "smooth": lambda _, y, x: F.celu(y, 0.7) + F.softplus(y, 2) + F.mish(x * y) + F.logsigmoid(y),
    "combined": lambda _, y, x: torch.addcmul(x, y, y, value=0.5) + torch.lerp(x, y, 0.3),
    "where true": lambda _, y, x: written(y, x > 0, 0.25),
    "rows where true": lambda _, y, x: written(y, x.sum(-1) > 0, 0.25),
    "at places": lambda _, y, x: written(y, (slice(None), [0, 3]), x[:, [1, 2]]),
    "at places, a number": lambda _, y, x: written(y * x, (slice(None), slice(None), [0, 3]), 1.0),
    "turned round": lambda _, y, x: (
        y.flip(-1) * x + torch.fliplr(y) + x.flip(1, 2) * y[:, :1].expand(-1, 5, -1).flip(1)
    ),
    "turned by a right angle": lambda _, y, x: torch.rot90(y, 1, (1, 2)).mT * x,
    "dimensions moved": lambda _, y, x: (
        y.movedim(-1, 1).swapdims(1, 2) * x + y.moveaxis((1, 2), (2, 1)).mT
    ),
    "selected": lambda _, y, x: (
        y.index_select(1, torch.tensor([0, 3, 3])) * x.index_select(-2, torch.tensor(2))
    ),
    "the only element, selected": lambda _, y, x: (
        y[:, :1].index_select(1, torch.tensor([0, 0, 0])) * x[:, 2:]
        + F.pad(y[:, :1], (0, 0, 1, 1), mode="replicate") * 2
        + y.unsqueeze(1)[:, [[0, 0, 0]]][:, 0, :, 0]
    ),
    "selected from parameters": lambda n, y, x: (
        y * n.vector.index_select(0, torch.tensor([4, 0, 0, 1]))
        + x * n.blocks[[1, 3, 3]].sum((0, 1))
    ),
    "added up": lambda n, y, x: y.cumsum(-1) * x.cumsum(1) + n.vector.cumsum(0)[:4],
    "views of one parameter": lambda n, y, x: (
        y[:, :4] * n.square.view(4, 4).t() + x[:, 1:] * n.square.view(4, 4).cumsum(1)
    ),
    "one view of a parameter, several readers": lambda n, y, x: several(y, x, n.vector[:4]),
    "added up, merged": lambda _, y, x: (
        y.unflatten(2, (2, 2)).transpose(2, 3).flatten(2).cumsum(2).flatten(1).cumsum(1)
        + x[:, :, :1].expand(-1, -1, 4).cumsum(-1).flatten(1)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_beside_pytorch(name: str) -> None:
    torch.manual_seed(0)
    assert_same(Net(CASES[name]), torch.randn(2, 5, 4))


class Steps(nn.Module):
    """A recurrent cell, step by step, from zeros, from nothing or from a state that is learned."""

    def __init__(self, cell: nn.RNNCellBase, first: str) -> None:
        super().__init__()
        self.cell, self.first = cell, first
        self.state = nn.Parameter(torch.randn(3)) if first == "learned" else None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state: Any = None
        if self.first != "nothing":
            vector = x.new_zeros(3) if self.state is None else self.state
            state = vector.expand(x.shape[0], 3)
            state = (state, state * 0.5) if isinstance(self.cell, nn.LSTMCell) else state
        results = []
        for step in range(3):
            state = self.cell(x[:, step], state)
            results.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(results, 1), state[1] if isinstance(state, tuple) else state * 1


CELLS: dict[str, Callable[..., nn.RNNCellBase]] = {
    "LSTM": nn.LSTMCell,
    "GRU": nn.GRUCell,
    "tanh": nn.RNNCell,
    "relu": lambda *a, **k: nn.RNNCell(*a, nonlinearity="relu", **k),
}


@pytest.mark.parametrize("name", CELLS)
def test_recurrent_cells(name: str) -> None:
    torch.manual_seed(0)
    for first, bias in (("zeros", False), ("nothing", True), ("learned", True)):
        assert_same(Steps(CELLS[name](4, 3, bias=bias), first), torch.randn(2, 5, 4))


class Applied(nn.Module):
    """A function of the input alone."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


REFUSED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "samples turned round": (lambda x: x.flip(0), "'flip' .*order of samples"),
    "samples added up": (lambda x: x.cumsum(0), "'cumsum' .*adds up samples"),
    "whole numbers added up": (
        lambda x: ((x > 0).int() * 3).cumsum(1) * x,
        "'cumsum' .*whole numbers other than truth values",
    ),
    "far too many added up": (
        lambda x: x.unsqueeze(2).expand(-1, -1, 250, -1).flatten(1).cumsum(1),
        "'cumsum' .*5000 positions; 4096 are the most",
    ),
    "samples selected": (
        lambda x: x.index_select(0, torch.tensor([0, 1])) * 2,
        "'index_select' .*picks samples",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    function, words = REFUSED[name]
    with pytest.raises(UserError, match=words):
        fl.from_torch(Applied(function), torch.randn(2, 5, 4))
