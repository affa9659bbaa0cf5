"""Autograd functions of one's own: followed where their backward pass is the forward pass's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from beside_torch import assert_same
from torch import Tensor, nn

import flexlegion as fl
from flexlegion.base.errors import UserError


class Saving(torch.autograd.Function):
    """GELU by tanh, whose slope is written out, as BLOOM's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        t = torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
        inner = (1 - t * t) * (0.79788456 + 0.1070322243 * x * x)
        return gradient * (0.5 * x * inner + 0.5 * (1 + t))


class Product(torch.autograd.Function):
    """Of two tensors and a number, in the style that sets the context up apart."""

    @staticmethod
    def forward(x: Tensor, y: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        return x * y * factor, x + y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _: Any) -> None:
        x, y, ctx.factor = inputs
        ctx.save_for_backward(x, y)

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, y = ctx.saved_tensors
        return first * y * ctx.factor + second, first * x * ctx.factor + second, None


class Rounded(torch.autograd.Function):
    """Rounds, and passes gradients straight through."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


class Clipped(torch.autograd.Function):
    """The identity, whose gradients are at most 1."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.clamp(-1, 1)


class Net(nn.Module):
    def __init__(self, body: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.body = nn.Linear(3, 4), nn.Linear(4, 2), body

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.body(self.first(x)))
        return result


@pytest.mark.parametrize(
    "body", [Saving.apply, lambda x: sum(Product.apply(x, x.sin(), 0.5))], ids=["one", "several"]
)
def test_what_agrees_is_followed(body: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    net = Net(body)
    assert_same(net, torch.randn(3, 3))
    (note,) = fl.from_torch(net, torch.randn(3, 3)).origin.notes
    assert "gives the gradient of the forward pass, as random numbers show" in note


@pytest.mark.parametrize("function", [Rounded, Clipped])
def test_what_differs_is_refused(function: Any) -> None:
    with pytest.raises(UserError, match=f"{function.__name__} has a backward pass of its own"):
        fl.from_torch(Net(function.apply), torch.randn(3, 3))
