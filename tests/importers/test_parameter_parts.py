"""Parts of parameters, what all samples share, and products that broadcast, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from beside_torch import assert_same
from torch import nn
from torch.nn import functional as F

import flexlegion as fl
from flexlegion.layers.origin import Layout

Body = Callable[..., torch.Tensor]


class Net(nn.Module):
    """Attention, a table of six rows, two rows that all samples share; and what to do with them."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.table, self.shared = (nn.Parameter(torch.randn(n, 4)) for n in (6, 2))
        self.dense = nn.Linear(4, 4)
        self.body = body

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.body(self, *inputs)

    def latents(self, x: torch.Tensor) -> torch.Tensor:
        """The shared rows for every sample."""
        return self.shared[None].expand(x.shape[0], -1, -1)


def attend(net: Net, *parts: torch.Tensor, **options: Any) -> torch.Tensor:
    """Attention's output alone."""
    y: torch.Tensor = net.attention(*parts, need_weights=False, **options)[0]
    return y


CASES: dict[str, Body] = {
    "attention to others": lambda n, x, k, _: attend(n, x, k, k),
    "attention to others of others": lambda n, *parts: attend(n, *parts),
    "latents attend": lambda n, x, *_: attend(n, n.latents(x), x, x),
    "latents in attention": lambda n, x, *_: F.scaled_dot_product_attention(
        n.latents(x)[:, None], x[:, None], x[:, None]
    ),
    "latents in a product": lambda n, x, *_: n.dense(n.latents(x)) @ x.transpose(1, 2),
    "latents merged": lambda n, x, *_: (
        n.dense(n.latents(x).reshape(-1, 4)).view(x.shape[0], 2, 4) + x[:, :2]
    ),
    "rows as kernels": lambda n, x, *_: (
        F.linear(x, n.table[:2]) @ F.linear(x, n.table[2:]).mT[:, :2]
    ),
    "rows as factors": lambda n, x, *_: x[:, :3] * n.table.chunk(2)[0] + n.table.chunk(2)[1],
    "one for several": lambda n, x, k, _: n.dense(x)[:, None] @ k.view(-1, 3, 2, 4).transpose(2, 3),
    "several for one": lambda n, x, k, _: k.view(-1, 3, 2, 4) @ n.dense(x)[:, None].transpose(2, 3),
    "sum of truths": lambda n, x, *_: n.dense(x) * ((x > 0) + (x > -1)),
}


@pytest.mark.parametrize("name", CASES)
def test_beside_pytorch(name: str) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(2, 5, 4), torch.randn(2, 6, 4), torch.randn(2, 6, 4)
    assert_same(Net(CASES[name]), *inputs)


def test_a_layout_of_rows_and_back() -> None:
    layouts = [
        Layout((2, 4), (1, 0), (4, 2), rows=(6, 0, 2)),
        Layout((4, 4), (0, 1), (4, 4), rows=(6, 2, 6)),
    ]
    parameter = np.arange(24.0).reshape(6, 4)
    again = np.empty(layouts[0].size())
    for layout in layouts:
        layout.put(layout.of(parameter), again)
    assert np.array_equal(again.reshape(6, 4), parameter)
    assert not layouts[0].overlaps(layouts[1])
    assert layouts[0].overlaps(Layout((2, 4), (0, 1), (2, 4), rows=(6, 1, 3)))
    assert layouts[0].overlaps(Layout((6, 4), (0, 1), (6, 4)))


def test_what_joins_samples_is_named() -> None:
    class Video(nn.Module):
        """Convolutions of frames."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x.flatten(0, 1)).mean((2, 3)).unflatten(0, (-1, 2))

    with pytest.raises(fl.UserError, match=r"'conv2d' at 'conv' .* samples that are merged with"):
        fl.from_torch(Video(), (torch.randn(4, 2, 3, 8, 8),))
    repeated = nn.Sequential(nn.Identity(), nn.BatchNorm2d(1))
    repeated.forward = lambda x: repeated[1](x.tile(1, 1, 1, 2))
    with pytest.raises(fl.UserError, match=r"'batch_norm' .* averages of elements that are rep"):
        fl.from_torch(repeated, (torch.randn(4, 1, 2, 3),))
