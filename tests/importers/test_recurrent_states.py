"""Recurrent layers that begin with states of their own, or project their states, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from beside_torch import assert_same
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import flexlegion as fl
from flexlegion.base.errors import UserError

Inputs = tuple[Tensor, ...]


class Decoder(nn.Module):
    """An encoder's last states are the first ones of another layer of the same sizes."""

    def __init__(self, kind: type[nn.Module], **options: int | bool) -> None:
        super().__init__()
        self.encoder, self.decoder = (kind(3, 4, batch_first=True, **options) for _ in range(2))
        self.out = nn.Linear(4 * (2 if options.get("bidirectional") else 1), 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        _, states = self.encoder(x)
        decoded, _ = self.decoder(y, states)
        result: Tensor = self.out(decoded)
        return result


class Begun(nn.Module):
    """States of each sample, of a dense layer; of an LSTM, the cells begin with zeros."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.state = layer, nn.Linear(5, 4)

    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.state(context)).unsqueeze(0)
        states = (h, torch.zeros_like(h)) if isinstance(self.layer, nn.LSTM) else h
        y, last = self.layer(x, states)
        return y, last[0] if isinstance(last, tuple) else last


class Learned(nn.Module):
    """The same first state for every sample, which is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 4, 2, batch_first=True)
        self.first = nn.Parameter(torch.randn(2, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.layer(x, self.first.expand(-1, x.shape[0], -1).contiguous())
        result: Tensor = y
        return result


class Projected(nn.Module):
    """States that are smaller than the layer's units."""

    def __init__(self, begins: bool = False, **options: int | bool) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 5, proj_size=2, **options)
        self.begins = begins

    def forward(self, x: Tensor) -> Tensor:
        states = None
        if self.begins:
            h = x[:, :1, :2].mT.flatten(1).unsqueeze(0)
            states = (torch.tanh(h), torch.cat([h, h, h[..., :1]], -1))
        y, (h, c) = self.layer(x, states)
        if self.layer.num_layers * (1 + self.layer.bidirectional) > 1:
            return y
        return y * h.transpose(0, 1) + c.transpose(0, 1).sum(-1, keepdim=True)


def _two() -> Inputs:
    return torch.randn(2, 5, 3), torch.randn(2, 6, 3)


def _one() -> Inputs:
    return torch.randn(2, 5, 3), torch.randn(2, 5)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Inputs]]] = {
    "lstm, of an encoder": (lambda: Decoder(nn.LSTM), _two),
    "gru, of an encoder": (lambda: Decoder(nn.GRU), _two),
    "rnn, of an encoder": (lambda: Decoder(nn.RNN), _two),
    "lstm of two layers": (lambda: Decoder(nn.LSTM, num_layers=2), _two),
    "gru in both directions": (lambda: Decoder(nn.GRU, num_layers=2, bidirectional=True), _two),
    "lstm in both directions": (lambda: Decoder(nn.LSTM, bidirectional=True), _two),
    "lstm, of each sample": (lambda: Begun(nn.LSTM(3, 4, batch_first=True)), _one),
    "gru, of each sample": (lambda: Begun(nn.GRU(3, 4, batch_first=True)), _one),
    "gru, learned": (Learned, lambda: (torch.randn(2, 5, 3),)),
    "projected": (lambda: Projected(batch_first=True), lambda: (torch.randn(2, 5, 3),)),
    "projected, without biases": (
        lambda: Projected(batch_first=True, bias=False, num_layers=2),
        lambda: (torch.randn(2, 5, 3),),
    ),
    "projected, in both directions": (
        lambda: Projected(batch_first=True, bidirectional=True),
        lambda: (torch.randn(2, 4, 3),),
    ),
    "projected, begun": (
        lambda: Projected(True, batch_first=True),
        lambda: (torch.randn(2, 5, 3),),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_states_beside_pytorch(name: str) -> None:
    torch.manual_seed(0)
    module, inputs = CASES[name]
    assert_same(module(), *inputs())


def test_operators_read_the_states() -> None:
    """Nothing is unrolled: the layers begin with what the encoder's ended with."""
    model = fl.from_torch(Decoder(nn.LSTM), _two())
    kinds = [op.kind.type for op in model.graph.operators]
    assert kinds.count("lstm") == 2
    assert len(model.graph.operators) <= 4


def test_long_projected_layers_are_refused() -> None:
    with pytest.raises(UserError, match=r"'lstm' with projected states has 200 steps; 128 are"):
        fl.from_torch(Projected(batch_first=True), torch.randn(2, 200, 3))
    dropping = Projected(batch_first=True, num_layers=2, dropout=0.5)
    with pytest.raises(UserError, match="projected states and dropout between its layers"):
        fl.from_torch(dropping, torch.randn(2, 4, 3))


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_states_of_onnx(kind: str, gates: int) -> None:
    """The import compares its outputs with ONNX's; an LSTM's cells begin with zeros."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.normal(size=(1, gates * 4, 3)),
        "r": rng.normal(size=(1, gates * 4, 4)),
        "b": rng.normal(size=(1, gates * 8)),
    }
    weights = [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()]
    weights.append(numpy_helper.from_array(np.zeros(1, np.int64), "axis"))
    options = {"linear_before_reset": 1} if kind == "GRU" else {}
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("Unsqueeze", ["h", "axis"], ["h0"]),
        helper.make_node(
            kind, ["t", "w", "r", "b", "", "h0"], ["s", "last"], hidden_size=4, **options
        ),
        helper.make_node("Squeeze", ["last", "axis"], ["y"]),
    ]
    x, h, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *shape])
        for name, shape in (("x", [5, 3]), ("h", [4]), ("y", [4]))
    )
    graph = helper.make_graph(nodes, "g", [x, h], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    imported = fl.from_onnx(model, batch_size=2)
    assert kind.lower() in {op.kind.type for op in imported.graph.operators}
    assert not [note for note in imported.origin.notes if "not checked" in note]
