"""A few modules drawn at random, beside PyTorch; tests/long/random_modules.py tries many."""

from __future__ import annotations

import pytest
import torch
from random_modules import outcome
from torch import nn

import flexlegion as fl


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_modules_are_right_or_refused(seed: int) -> None:
    kinds = [outcome(one) for one in range(seed, seed + 10)]
    for found in kinds:
        assert found.kind in ("right", "refused", "unfit"), f"{found.why}\n{found.source}"
    assert any(found.kind == "right" for found in kinds)


class States(nn.Module):
    """The last states of recurrent layers, one layer and several, one unit and several."""

    def __init__(self, kind: type[nn.RNNBase], units: int, layers: int) -> None:
        super().__init__()
        self.first = kind(3, units, layers, batch_first=True)
        self.term = nn.Parameter(torch.randn(units))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steps, state = self.first(x)
        state = state[0] if isinstance(state, tuple) else state
        return steps, state[-1] - self.term


def test_states_of_recurrent_layers() -> None:
    for kind in (nn.LSTM, nn.GRU):
        for units in (1, 3):
            for layers in (1, 2):
                fl.from_torch(States(kind, units, layers), torch.randn(4, 2, 3))
