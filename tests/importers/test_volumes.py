"""Convolutions and poolings of three dimensions, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from beside_torch import assert_same
from torch import nn

import flexlegion as fl
from flexlegion.base.errors import UserError

CASES: dict[str, Callable[[], nn.Module]] = {
    "windows that do not overlap": lambda: nn.Conv3d(2, 3, (2, 3, 2), (2, 3, 2)),
    "padded": lambda: nn.Conv3d(2, 3, 3, padding=1),
    "strides": lambda: nn.Conv3d(2, 3, (1, 3, 2), (1, 2, 3), (0, 1, 1), bias=False),
    "dilated, in groups": lambda: nn.Conv3d(2, 4, 2, 1, (1, 0, 2), (2, 1, 3), groups=2),
    "same": lambda: nn.Conv3d(2, 3, (2, 3, 4), padding="same"),
    "largest values": lambda: nn.Sequential(nn.Conv3d(2, 3, 1), nn.ReLU(), nn.MaxPool3d(2)),
    "largest values, overlapping": lambda: nn.Sequential(
        nn.Conv3d(2, 3, 2), nn.ReLU(), nn.MaxPool3d(3, 2, 1, ceil_mode=True)
    ),
    "largest values, dilated": lambda: nn.Sequential(
        nn.Conv3d(2, 2, 1), nn.MaxPool3d((1, 2, 2), (1, 1, 2), (0, 1, 1), (1, 3, 2))
    ),
    "a network": lambda: nn.Sequential(
        nn.Conv3d(2, 4, 3, padding=1),
        nn.BatchNorm3d(4),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(4, 3, 2),
        nn.AvgPool3d((1, 2, 2), 1),
        nn.Flatten(),
        nn.LazyLinear(2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_beside_pytorch(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 2, 5, 7, 6)
    module = CASES[name]()
    module(x)
    assert_same(module, x)


def test_transposed_convolutions_are_refused() -> None:
    with pytest.raises(UserError, match="'conv_transpose3d'"):
        fl.from_torch(nn.ConvTranspose3d(2, 3, 2), torch.randn(2, 2, 3, 3, 3))
