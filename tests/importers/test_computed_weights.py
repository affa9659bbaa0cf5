"""Layers whose weights are computed; test_special_modules.py trains some on Legion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

import flexlegion as fl


class Net(nn.Module):
    """A function of parameters and inputs."""

    def __init__(self, function: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


def _in_eval_mode(layer: nn.Module) -> nn.Module:
    layer.parametrizations.weight[0].eval()
    return nn.Sequential(layer, nn.Linear(5, 2))


def _cases() -> dict[str, tuple[nn.Module, Tensor, int]]:
    """Modules, their inputs, and how many of their layers have a weight that is computed."""
    torch.manual_seed(0)
    x, steps, image = torch.randn(4, 6), torch.randn(4, 3, 6), torch.randn(4, 3, 6, 6)
    w, a, b = torch.randn(5, 6), torch.randn(2, 6), torch.randn(5, 2)
    return {
        "adapter": (Net(lambda n, x: F.linear(x, n.w + n.b @ n.a), w=w, a=a, b=b), steps, 1),
        "cosine": (Net(lambda n, x: F.linear(F.normalize(x), F.normalize(n.w)), w=w), x, 1),
        "softmax": (Net(lambda n, x: x @ n.w.softmax(1).t(), w=w), steps, 1),
        "vector": (Net(lambda n, x: x @ n.w.exp(), w=torch.randn(6)), steps, 1),
        "from_the_left": (Net(lambda n, x: n.w.tanh() @ x, w=torch.randn(4, 3)), steps, 1),
        "joined": (Net(lambda n, x: F.linear(x, torch.cat([n.a, n.w])), a=a, w=w), x, 1),
        "squared": (Net(lambda n, x: F.linear(x, n.w.t() @ n.w), w=w), x, 2),
        "also_added": (Net(lambda n, x: F.linear(x, n.w) + n.w.sum(1), w=w), x, 1),
        "scale": (Net(lambda n, x: F.rms_norm(x, (6,), 1 + n.w), w=torch.randn(6)), x, 0),
        "weight_norm": (weight_norm(nn.Linear(6, 5)), steps, 1),
        "one_length": (weight_norm(nn.Linear(6, 5), dim=None), x, 1),
        "filters": (weight_norm(nn.Conv2d(3, 4, 3, groups=1), dim=1), image, 1),
        "of_lines": (weight_norm(nn.Conv1d(3, 4, 3)), steps, 1),
        "spectral_norm": (_in_eval_mode(spectral_norm(nn.Linear(6, 5))), x, 1),
    }


@pytest.mark.parametrize("name", _cases())
def test_layers_by_computed_weights_are_those_of_pytorch(name: str) -> None:
    """The import compares outputs and gradients."""
    module, x, count = _cases()[name]
    model = fl.from_torch(module, (x,))
    assert not [note for note in model.origin.notes if "not checked" in note]
    types = [op.kind.type for op in model.graph.operators]
    assert types.count("given_weights") == count
    names = {name for name, parameter in module.named_parameters()}
    assert names == set(model.origin.places)


def test_they_are_divided_and_simulated_as_layers_with_weights() -> None:
    w, a, b = (torch.randn(*shape) for shape in ((512, 512), (8, 512), (512, 8)))
    module = Net(lambda n, x: F.linear(x, n.w + n.b @ n.a), w=w, a=a, b=b)
    model = fl.from_torch(module, (torch.randn(64, 512),))
    (layer,) = [op for op in model.graph.operators if op.kind.type == "given_weights"]
    plain = fl.from_torch(nn.Linear(512, 512, bias=False), (torch.randn(64, 512),))
    dense = plain.graph.operators[0]
    assert layer.kind.flops(layer.input_shapes) == dense.kind.flops(dense.input_shapes)
    assert [dim.kind for dim in layer.dims] == [dim.kind for dim in dense.dims]
    found = fl.search(model, "p100x4", budget="0.3s")
    assert found.iteration_time_ns > 0
    assert fl.simulate(model, "p100x4", "model").iteration_time_ns > 0


@pytest.mark.parametrize(
    ("module", "x", "message"),
    [
        (
            spectral_norm(nn.Linear(6, 5)),
            torch.randn(4, 6),
            r"\(spectral_norm\) moves its vectors in each training step, .* \.training to False",
        ),
        (orthogonal(nn.Linear(6, 6)), torch.randn(4, 6), r"'matrix_exp' .* is not known"),
        (
            Net(lambda n, t: F.embedding(t, n.w * 2), w=torch.randn(9, 4)),
            torch.randint(9, (4, 3)),
            r"'embedding' .* its table is computed, not a parameter",
        ),
    ],
    ids=["spectral_norm", "orthogonal", "table"],
)
def test_what_cannot_be_computed_is_named(module: nn.Module, x: Tensor, message: str) -> None:
    with pytest.raises(fl.UserError, match=message):
        fl.from_torch(module, (x,))
