"""Modules of PyTorch become models: layers, names, shapes, layouts, and messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch.models import MODELS
from torch import nn

import flexlegion as fl
from flexlegion.base.errors import UserError
from flexlegion.layers.origin import Layout


def kinds(model: fl.Model) -> dict[str, str]:
    """Type of each operator by its name."""
    return {op.name: op.kind.type for op in model.graph.operators}


def test_layers_are_called_by_their_paths_and_bring_weights_along() -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    model = fl.from_torch(module, torch.randn(2, 6))
    assert kinds(model) == {"0": "dense", "2": "dense"}
    assert model.graph.operators[0].kind.attributes()["activation"] == "relu"
    assert model.batch_size == 2
    kernel = model.graph.operators[0].weights[0]
    assert kernel.initializer is not None
    assert np.array_equal(kernel.initializer(kernel.shape, "", 0), module[0].weight.detach())


def test_the_batch_is_the_examples_unless_given() -> None:
    module = nn.Linear(6, 4)
    assert fl.from_torch(module, torch.randn(1, 6)).batch_size == 1
    assert fl.from_torch(module, torch.randn(2, 6), batch_size=32).outputs[0].shape == (32, 4)


def test_images_have_their_channels_last_and_dense_layers_permuted_columns() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(48, 5)
    )
    model = fl.from_torch(module, torch.randn(2, 3, 6, 8))
    assert model.graph.inputs[0].shape == (2, 6, 8, 3)
    assert "transpose" not in kinds(model).values()
    assert model.origin is not None
    assert model.origin.inputs == {"input": (0, 2, 3, 1)}
    layout = model.origin.places["3.weight"][0].layout
    assert layout.factors == (5, 4, 3, 4)
    assert layout.order == (0, 2, 3, 1)


def test_a_layout_and_back() -> None:
    layout = Layout((5, 4, 6), (0, 2, 1), (5, 24))
    parameter = np.arange(120.0).reshape(5, 24)
    again = np.empty(parameter.size)
    layout.put(layout.of(parameter), again)
    assert np.array_equal(again.reshape(5, 24), parameter)
    assert not np.array_equal(layout.of(parameter), parameter)


class Heads(nn.Module):
    """Attention with steps before samples, and samples merged with heads."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.transpose(0, 1)
        return self.attention(x, x, x, need_weights=False)[0].transpose(0, 1)


def test_chains_of_views_come_to_few_moves() -> None:
    model = fl.from_torch(Heads(), torch.randn(3, 5, 8))
    found = list(kinds(model).values())
    assert found.count("multi_head_attention") == 1
    assert found.count("dense") == 2
    assert "transpose" not in found
    assert model.outputs[0].shape == (3, 5, 8)


class Masked(nn.Module):
    """A causal mask, written down as a constant."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[2], x.shape[2], dtype=torch.bool).tril()
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


@pytest.mark.parametrize("activation", ["ReLU", "ReLU6", "SiLU", "Hardswish"])
def test_a_normalisation_takes_the_activation_after_it(activation: str) -> None:
    parts = nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4), getattr(nn, activation)(inplace=True)
    model = fl.from_torch(nn.Sequential(*parts), torch.randn(2, 3, 6, 8))
    last = model.graph.operators[-1].kind
    assert (last.type, last.attributes()["activation"]) == ("batch_norm", activation.lower())


class Branch(nn.Module):
    """A normalised convolution beside its input, and a SiLU of their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 1, bias=False)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(self.norm(self.convolution(x)) + x)


def test_after_a_residual_only_a_relu_is_taken_along() -> None:
    model = fl.from_torch(Branch(), torch.randn(2, 4, 6, 8))
    norm = model.graph.operators[-2]
    assert (norm.kind.type, norm.kind.attributes()["activation"]) == ("batch_norm", "none")
    assert model.graph.operators[-1].kind.type == "expression"


def test_a_causal_mask_is_recognised() -> None:
    model = fl.from_torch(Masked(), torch.randn(3, 2, 5, 4))
    (attention,) = [op for op in model.graph.operators if op.kind.type == "multi_head_attention"]
    assert attention.kind.attributes()["causal"] == "1"
    assert len(attention.inputs) == 3


class Frozen(nn.Module):
    """A frozen kernel, a trained bias, and a table that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.head = nn.Linear(4, 9)
        self.head.weight = self.table.weight
        self.fixed = nn.Linear(4, 4)
        self.fixed.weight.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.fixed(self.table(tokens)))


def test_tied_and_frozen_weights() -> None:
    model = fl.from_torch(Frozen(), torch.zeros(2, 3, dtype=torch.int64))
    table, fixed, head = model.graph.operators
    assert head.weights[0] is table.weights[0]
    assert [w.requires_gradient for w in fixed.weights] == [False, True]
    assert model.origin is not None
    assert {"table.weight", "head.weight"} in [set(n) for n in model.origin.aliases.values()]


def test_element_wise_chains_become_one_operator() -> None:
    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 2 + 1).sigmoid() * x.clamp(min=0)

    model = fl.from_torch(Chain(), torch.randn(2, 5))
    assert len(model.graph.operators) == 1


class Unknown(nn.Module):
    """Operations that are not known."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.kthvalue(x, 2, 1, keepdim=True).values + torch.logcumsumexp(x, 1)


class Branches(nn.Module):
    """A graph break."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x


class Complex(nn.Module):
    """A complex output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.complex(x, x)


class Integers(nn.Module):
    """An output of integers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.argmax(1)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            nn.Sequential(Unknown()),
            ["2 of the network's operations", "'kthvalue' at '0'", "logcumsumexp"],
        ),
        (Branches(), ["torch.export cannot export Branches"]),
        (Complex(), ["output", "complex"]),
        (Integers(), ["output", "int64"]),
        ("no.pt2", ["no.pt2: no such file"]),
        (3, ["torch.nn.Module", "int"]),
    ],
    ids=["unknown", "graph_break", "complex", "integers", "no_file", "no_module"],
)
def test_what_cannot_be_imported_is_said_in_a_sentence(module: Any, words: list[str]) -> None:
    with pytest.raises(UserError) as e:
        fl.from_torch(module, torch.randn(2, 4))
    assert all(word in str(e.value) for word in words), str(e.value)
    assert "\n" not in str(e.value)


def test_exported_programs(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    module = nn.Linear(4, 3)
    batch = torch.export.Dim("batch")
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: batch},))
    torch.export.save(exported, tmp_path / "net.pt2")
    assert fl.from_torch(tmp_path / "net.pt2", batch_size=8).outputs[0].shape == (8, 3)
    with pytest.raises(UserError, match="fixed batch"):
        fl.from_torch(torch.export.export(module, (x,)))
    twice = torch.export.export(
        nn.ReLU(), (x,), dynamic_shapes=({0: batch, 1: torch.export.Dim("width")},)
    )
    with pytest.raises(UserError, match="dimension 1 of input"):
        fl.from_torch(twice)
    (tmp_path / "bad.pt2").write_bytes(b"nothing")
    with pytest.raises(UserError, match="not an exported program"):
        fl.from_torch(tmp_path / "bad.pt2")


@pytest.mark.parametrize("form", ["grouped_mm", "batched_mm"])
def test_experts_of_mixtral_are_one_operator(form: str) -> None:
    """However transformers computes them; their stacked matrices are two weights."""
    module, example = MODELS["mixtral"]()
    module.set_experts_implementation(form)
    model = fl.from_torch(module, example)
    (first, _) = [op for op in model.graph.operators if op.kind.type == "experts"]
    assert first.inputs[1].producer is not None
    assert first.kind.attributes()["activation"] == "silu"
    assert [op.kind.type for op in model.graph.operators].count("top_k") == 2
    assert model.origin is not None
    name = "model.layers.0.mlp.experts.gate_up_proj"
    parameter = module.get_parameter(name).detach().numpy()
    drawn = {w.name: w.initializer(w.shape, "", 0) for w in first.weights}
    assert np.array_equal(drawn[first.weights[0].name], parameter[:, :64])
    assert np.array_equal(model.origin.parameter(name, drawn).reshape(parameter.shape), parameter)
