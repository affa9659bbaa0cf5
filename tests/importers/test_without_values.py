"""Modules without values ("meta", fake) are searched; what needs values is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import flexlegion as fl
from flexlegion.graph.initializers import initial_weights

STEPS, WIDTH, VOCABULARY = 6, 8, 11


class Decoder(nn.Module):
    """Blocks of causal attention with rotated queries, behind a table that the classes share."""

    def __init__(self, blocks: int = 2, again: bool | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(blocks))
        self.classes = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.classes.weight = self.table.weight
        angles = torch.arange(STEPS)[:, None] * 0.3 ** torch.arange(WIDTH // 2)
        self.register_buffer("angles", torch.cat([angles, angles], 1), persistent=False)
        self.register_buffer("places", torch.arange(STEPS - 1, -1, -1))
        self.again = again

    def block(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """One block."""
        q = layer(x)[:, None]
        first, second = q.chunk(2, -1)
        q = q * self.angles.cos() + torch.cat([-second, first], -1) * self.angles.sin()
        allowed = torch.ones(STEPS, STEPS, dtype=torch.bool, device=x.device).tril()
        return x + F.scaled_dot_product_attention(q, q, q, attn_mask=allowed)[:, 0]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens) + self.table(self.places)
        for layer in self.blocks:
            if self.again is None:
                x = self.block(layer, x)
            else:
                x = checkpoint(self.block, layer, x, use_reentrant=self.again)
        return self.classes(x)


def _form(model: fl.Model) -> list[Any]:
    return [
        (op.name, op.kind.type, [t.shape for t in op.inputs], [w.name for w in op.weights])
        for op in model.graph.operators
        if op.kind.type not in ("embedding", "expand")  # whose rows are known or not
    ]


def test_a_module_on_meta_is_the_module_without_values() -> None:
    tokens = torch.zeros(4, STEPS, dtype=torch.long)
    with torch.device("meta"):
        empty = Decoder()
    model = fl.from_torch(empty, (tokens,))
    real = fl.from_torch(Decoder(), (tokens,))
    kinds = [op.kind for op in model.graph.operators]
    assert all(kind.causal for kind in kinds if kind.type == "multi_head_attention")
    assert [k.type for k in kinds].count("rotary") == 2
    assert [line for line in _form(model) if "attention" in line[1]] == [
        line for line in _form(real) if "attention" in line[1]
    ]
    assert "can be searched and simulated, not trained" in model.origin.notes[-1]
    assert model.origin.aliases["table.weight"] == real.origin.aliases["table.weight"]
    found = fl.search(model, "p100x4", budget="0.2s")
    assert found.iteration_time_ns > 0
    with pytest.raises(fl.UserError, match=r"^'classes.weight' of the module has no values, as"):
        model.compile()
    constants = [w for w in model.graph.weights if w.name not in _held(model)]
    with pytest.raises(fl.UserError, match=r"'angles' of the module has no values"):
        np.asarray(next(w for w in constants if w.dtype == "float32").initializer.array)
    with pytest.raises(fl.UserError, match=r"'places' of the module has no values"):
        np.asarray(next(w for w in constants if w.dtype == "int32").initializer.array)


def _held(model: fl.Model) -> set[str]:
    return {place.weight for places in model.origin.places.values() for place in places}


def test_buffers_that_have_values_are_read_where_parameters_have_none() -> None:
    real = Decoder()
    for part in real.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(parameter.to("meta"))
    real.classes.weight = real.table.weight
    tokens = torch.zeros(4, STEPS, dtype=torch.long)
    model = fl.from_torch(real, (tokens,))
    whole = fl.from_torch(Decoder(), (tokens,))
    assert _form(model) == _form(whole)
    held = _held(model)
    for weight, other in zip(model.graph.weights, whole.graph.weights, strict=True):
        if weight.name not in held:
            np.testing.assert_array_equal(
                np.asarray(weight.initializer.array), np.asarray(other.initializer.array)
            )
    assert real.angles.device.type == "cpu"
    assert real.table.weight is real.classes.weight


def test_fake_modules_and_fake_inputs_are_imported() -> None:
    with FakeTensorMode():
        fake = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        x = torch.randn(4, 4)
    model = fl.from_torch(fake, (x,))
    assert model.outputs[0].shape == (4, 3)
    model = fl.from_torch(nn.Linear(4, 3), (torch.zeros(4, 4, device="meta"),))
    assert initial_weights(model.graph, 0)["linear.kernel"].shape == (3, 4)


def test_what_needs_the_numbers_of_a_constant_is_refused_by_name() -> None:
    class Picks(nn.Module):
        """Picks elements by a buffer."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("places", torch.tensor([2, 0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, self.places]

    with torch.device("meta"):
        net = Picks()
    with pytest.raises(
        fl.UserError, match=r"'index' .* needs the numbers of a constant: 'places' of"
    ):
        fl.from_torch(net, (torch.zeros(4, 3),))


def test_parameters_of_bfloat16_are_read_when_they_are_needed() -> None:
    module = nn.Linear(4, 3).to(torch.bfloat16)
    model = fl.from_torch(module, (torch.randn(4, 4, dtype=torch.bfloat16),))
    expected = module.weight.detach().float().numpy().copy()
    np.testing.assert_array_equal(initial_weights(model.graph, 0)["linear.kernel"], expected)
    with torch.no_grad():
        module.weight.mul_(2)
    with pytest.raises(fl.UserError, match=r"the module's 'weight' has changed since the module"):
        initial_weights(model.graph, 0)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_are_said_and_change_no_gradient(reentrant: bool) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(VOCABULARY, (4, STEPS))
    model = fl.from_torch(Decoder(again=reentrant), (tokens,))
    assert _form(model) == _form(fl.from_torch(Decoder(), (tokens,)))
    note = "the module computes 2 of its parts again in the backward pass (gradient checkpointing)"
    assert model.origin.notes[0].startswith(note)


def test_constants_of_bfloat16_are_compared_up_to_its_rounding() -> None:
    class Turned(nn.Module):
        """Multiplies by the cosine of places."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * torch.arange(6.0).cos().to(x.dtype)

    x = torch.randn(4, 6, dtype=torch.bfloat16)
    model = fl.from_torch(Turned().to(torch.bfloat16), (x,))
    assert [note for note in model.origin.notes if "bfloat16" in note] == model.origin.notes
