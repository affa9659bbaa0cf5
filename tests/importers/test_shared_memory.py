"""Writes in place, numbers of samples, and what has no gradient: as in PyTorch, or refused."""

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

Body = Callable[..., Any]


class Net(nn.Module):
    """Two dense layers and a buffer, and a forward pass that is given."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("kept", torch.arange(4.0))
        self.body = body

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.body(self, *inputs)


def changed(net: Net, x: torch.Tensor, change: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    """A tensor after something has been written to it."""
    y = net.a(x)
    change(y)
    return net.b(y) + y


def part_of_new(net: Net, x: torch.Tensor) -> torch.Tensor:
    wide = x.new_zeros(x.shape[0], 7, 4)
    wide[:, 1:6] = net.a(x)
    return net.b(wide).sum(1)


def interleaved(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.a(x)
    mixed = torch.empty_like(y)
    mixed[..., ::2], mixed[..., 1::2] = y[..., 1::2], y[..., ::2] * 2
    return mixed


def running_sum(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.a(x)
    for i in range(1, 5):
        y[:, i] += y[:, i - 1]
    return y


def base_then_view(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.a(x)
    view = y.view(-1, 5, 2, 2).transpose(1, 2)
    y.mul_(2)
    y[:, 1] = 0
    return view.sum(1)


def constant_afterwards(net: Net, x: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(4)
    y = net.a(x) + mask
    mask[1] = 1
    mask.add_(1)
    return y * mask


def by_columns(net: Net, x: torch.Tensor) -> torch.Tensor:
    joined = torch.zeros(x.shape[0], 5, 4)
    for i in range(5):
        joined[:, i] = net.a(x[:, i]) * i
    return joined


def swapped(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.a(x)
    y[..., :2], y[..., 2:] = y[..., 2:].clone(), y[..., :2].clone()
    return y


def into_output(net: Net, x: torch.Tensor) -> torch.Tensor:
    place = torch.empty_like(x)
    torch.add(net.a(x).detach(), x, out=place)
    return net.b(place)


WRITES: dict[str, Body] = {
    "split": lambda n, x: changed(n, x, lambda y: torch.tensor_split(y, 2, -1)[0].mul_(3)),
    "hsplit": lambda n, x: changed(n, x, lambda y: torch.hsplit(y[:, :4], 2)[1].mul_(3)),
    "narrowed": lambda n, x: changed(n, x, lambda y: y.narrow(2, 2, 2).add_(1)),
    "diagonal": lambda n, x: changed(n, x, lambda y: y.diagonal(0, 1, 2).fill_(0.5)),
    "transposed": lambda n, x: changed(n, x, lambda y: y.transpose(1, 2)[:, 1:3].mul_(2)),
    "reshaped": lambda n, x: changed(n, x, lambda y: y.reshape(-1, 2).add_(1)),
    "selected": lambda n, x: changed(n, x, lambda y: y[:, 2].zero_()),
    "stepped": lambda n, x: changed(n, x, lambda y: y[:, ::2].mul_(2)),
    "dropout of no effect": lambda n, x: changed(n, x, lambda y: F.dropout(y, 0.5, False).add_(1)),
    "conversion of no effect": lambda n, x: changed(n, x, lambda y: y.to(x.dtype).mul_(2)),
    "contiguous already": lambda n, x: changed(n, x, lambda y: y.contiguous().mul_(2)),
    "made contiguous": lambda n, x: changed(n, x, lambda y: y.transpose(1, 2).contiguous().mul_(2)),
    "masked": lambda n, x: changed(n, x, lambda y: y.masked_fill_(x > 0, 0.5)),
    "activation": lambda n, x: changed(n, x, F.relu_),
    "copied": lambda n, x: changed(n, x, lambda y: y[:, 1:3].copy_(x[:, :2])),
    "a part of a new tensor": part_of_new,
    "interleaved": interleaved,
    "running sum": running_sum,
    "base, then view": base_then_view,
    "a constant afterwards": constant_afterwards,
    "by columns": by_columns,
    "swapped": swapped,
    "into an output": into_output,
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_in_place_are_followed(name: str) -> None:
    torch.manual_seed(0)
    assert_same(Net(WRITES[name]), torch.randn(2, 5, 4))


def without_gradient(net: Net, x: torch.Tensor, mode: Any) -> torch.Tensor:
    y = net.a(x)
    with mode:
        z = net.b(y) * 2
    return y * z


UNTRACKED: dict[str, Body] = {
    "detach": lambda n, x: n.b(n.a(x)).sigmoid() * n.a(x).detach(),
    "all of it": lambda n, x: n.b(n.a(x).detach()),
    "straight through": lambda n, x: n.b((y := n.a(x)) + ((y > 0).to(y.dtype) - y).detach()),
    "no_grad": lambda n, x: without_gradient(n, x, torch.no_grad()),
    "inference_mode": lambda n, x: n.a(x) * _inferred(x),
    "of an input": lambda n, x: n.a(x) * x.detach(),
}


def _inferred(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        y = x * 2
    return y.clone()


@pytest.mark.parametrize("name", UNTRACKED)
def test_what_has_no_gradient_has_none_here(name: str) -> None:
    torch.manual_seed(0)
    assert_same(Net(UNTRACKED[name]), torch.randn(3, 4))


class Reversed(torch.autograd.Function):
    """The gradient with its sign changed."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return -gradient


def hooked(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.a(x)
    y.register_hook(lambda gradient: -gradient)
    return y


def counted(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.kept.add_(1)
    return net.a(x)


def replaced(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.a(x)
    net.kept = 0.9 * net.kept + 0.1 * y.detach().mean(0)
    return y


def clamped(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        net.a.weight.clamp_(-0.1, 0.1)
    return net.a(x)


def kept_history(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.a(x) * 1
    with torch.no_grad():
        y.mul_(2)
    return y


REFUSED: dict[str, tuple[Body, str]] = {
    "extent": (lambda n, x: n.a(x) / x.shape[0], "'div' computes with the number of samples"),
    "elements": (lambda n, x: n.a(x) * x.numel(), "'mul' computes with the number of samples"),
    "inverse": (lambda n, x: n.a(x) * (1 / x.numel()), "'mul' computes with the number"),
    "sum of ones": (lambda n, x: n.a(x) / torch.ones(x.shape[0], 4).sum(), "number of samples"),
    "numbered": (lambda n, x: n.a(x) + torch.arange(x.shape[0])[:, None], "from sample to sample"),
    "backward": (lambda n, x: n.b(Reversed.apply(n.a(x))), "autograd function Reversed"),
    "hook": (hooked, "hooks '<lambda>' on a gradient"),
    "counter": (counted, "changes buffer 'kept'"),
    "memory": (replaced, "changes buffer 'kept'"),
    "weight": (clamped, "writes without gradients"),
    "untracked write": (kept_history, "'mul' writes without gradients"),
    "detached write": (
        lambda n, x: changed(n, x, lambda y: y.detach().mul_(2)),
        "writes through a detached tensor",
    ),
    "some samples": (lambda n, x: changed(n, x, lambda y: y[0].zero_()), "some of the samples"),
    "drawn once": (lambda n, x: n.a(x) + torch.empty(4).uniform_(-1, 1), "'uniform'"),
    "permuted once": (lambda n, x: n.a(x)[:, torch.randperm(4)], "'randperm'"),
    "fixed": (lambda n, x: n.a(x) * len(x), "fixes the number of samples"),
    "exact": (lambda n, x: n.a(x) * (x.long() == 16777217), "the whole number 16777217"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_by_name(name: str) -> None:
    body, words = REFUSED[name]
    with pytest.raises(UserError) as e:
        fl.from_torch(Net(body), torch.randn(3, 4))
    assert words in str(e.value)
    assert "\n" not in str(e.value)


def test_hooks_of_the_backward_pass_are_refused() -> None:
    layer = nn.Linear(4, 4)
    layer.register_full_backward_hook(lambda *_: None)
    with pytest.raises(UserError, match=r"'0' \(Linear\) has a backward hook"):
        fl.from_torch(nn.Sequential(layer), torch.randn(2, 4))
    layer = nn.Linear(4, 4)
    layer.weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(UserError, match=r"parameter '0\.weight' has a hook"):
        fl.from_torch(nn.Sequential(layer), torch.randn(2, 4))


class Skipped(nn.Module):
    """A layer that is left out now and then while training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and torch.rand(()) < 0.5:
            return x
        y: torch.Tensor = self.layer(x)
        return y


def test_a_part_that_does_not_export_in_train_mode_is_named() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), Skipped())
    with pytest.raises(UserError, match=r"in train mode \(in '2', Skipped\)"):
        fl.from_torch(module, torch.randn(3, 4))
    module[2].training = False
    model = fl.from_torch(module, torch.randn(3, 4))
    assert [op.kind.type for op in model.graph.operators] == ["dense", "dropout", "dense"]
    assert [part.training for part in module] == [True, True, False]
    module = nn.Sequential(nn.BatchNorm1d(4, momentum=None), nn.Dropout(0.5))
    with pytest.raises(UserError, match=r"'0' \(BatchNorm1d\) has momentum=None"):
        fl.from_torch(module, torch.randn(3, 4))


def test_dropout_in_place_is_a_layer() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3, inplace=True), nn.Linear(4, 2))
    model = fl.from_torch(module, torch.randn(3, 4))
    assert [op.kind.type for op in model.graph.operators] == ["dense", "dropout", "dense"]


def test_long_chains_are_cut_into_formulas() -> None:
    def chain(net: Net, x: torch.Tensor) -> torch.Tensor:
        y = net.a(x)
        for i in range(70):
            y = torch.sin(y + 0.01 * i)
        return y

    assert_same(Net(chain), torch.randn(3, 4))


MASKS: dict[str, Body] = {
    "mean": lambda n, x, m: (n.a(x) * m.unsqueeze(-1).float()).sum(1) / m.sum(1, keepdim=True),
    "expanded": lambda n, x, m: (n.a(x) * m[:, :, None].expand(x.shape).to(x.dtype)).sum(1),
    "added": lambda n, x, m: n.a(x) + (1.0 - m[:, :, None].float()) * -5,
    "compared": lambda n, x, m: n.a(x).masked_fill((m == 0)[..., None], 0.0),
    "turned": lambda n, x, m: n.a(x) * m.t().contiguous().t()[..., None],
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_whole_numbers_become_real_ones(name: str) -> None:
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert_same(Net(MASKS[name]), torch.randn(2, 3, 4), mask)


def test_what_is_called_as_labels_and_losses_are() -> None:
    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss, self.labels = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, loss: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.labels(self.loss(loss) * labels)
            return y

    assert_same(Called(), torch.randn(3, 4), torch.randn(3, 4))


def test_infinity_is_compared_with_as_it_is() -> None:
    x = torch.tensor([[1.0, float("inf"), -float("inf"), 3.0]] * 2)
    assert_same(Net(lambda n, x: n.kept * (x == float("inf")) + (x > -float("inf"))), x)


def test_adaptive_maxima() -> None:
    module = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    )
    assert_same(module, torch.randn(2, 2, 4, 4))
