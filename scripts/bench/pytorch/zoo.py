"""The zoo's networks in PyTorch, as its users write them; the sizes are those of flexlegion.zoo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from flexlegion.zoo import ZOO
from pytorch.images import AlexNet, InceptionV3, LeNet, ResNet101
from pytorch.weights import Link, Twin, joint_links, links_of, lstm_links


class MLP(Twin):
    """Dense layers with ReLU; images are (n, channel, height, width) as elsewhere."""

    def __init__(self, input_shape: tuple[int, ...], classes: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        if len(input_shape) == 3:
            h, w, c = input_shape
            image, width = (c, h, w), h * w * c
        elif len(input_shape) == 1:
            image, width = None, input_shape[0]
        else:
            raise ValueError(f"the input is a vector or an image, not {input_shape}")
        self.dense = nn.ModuleList()
        names = [f"hidden{i + 1}" for i in range(len(hidden))] + ["output"]
        for name, units in zip(names, (*hidden, classes), strict=True):
            layer = nn.Linear(width, units)
            self.links += links_of(name, layer, image if not len(self.dense) else None)
            self.dense.append(layer)
            width = units

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        for layer in self.dense[:-1]:
            x = F.relu(layer(x))
        return self.dense[-1](x)  # type: ignore[no-any-return]


class RNNTC(Twin):
    """LSTM layers; the last step's output says the class."""

    def __init__(
        self,
        *,
        classes: int,
        steps: int,
        layers: int,
        hidden: int,
        embedding: int,
        vocabulary: int,
        steps_per_op: int,
    ) -> None:
        super().__init__()
        del steps, steps_per_op  # any
        self.embed = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, classes)
        self.links = [
            *links_of("embed.0", self.embed),
            *lstm_links(_recurrent("lstm", layers), self.lstm),
            *links_of("output", self.output),
        ]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y, _ = self.lstm(self.embed(tokens))
        return self.output(y[:, -1])  # type: ignore[no-any-return]


class RNNLM(Twin):
    """LSTM layers; each step's output says the next word."""

    def __init__(
        self,
        *,
        steps: int,
        layers: int,
        hidden: int,
        embedding: int | None,
        vocabulary: int,
        steps_per_op: int,
    ) -> None:
        super().__init__()
        del steps, steps_per_op  # any
        embedding = hidden if embedding is None else embedding
        self.embed = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.project = nn.Linear(hidden, vocabulary)
        self.links = [
            *links_of("embed.0", self.embed),
            *lstm_links(_recurrent("lstm", layers), self.lstm),
            *links_of("project.0", self.project),
        ]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y, _ = self.lstm(self.embed(tokens))
        return self.project(y)  # type: ignore[no-any-return]


class NMT(Twin):
    """LSTM encoder and decoder, Luong's attention, and a word for each step of the decoder."""

    def __init__(
        self,
        *,
        steps: int,
        layers: int,
        hidden: int,
        embedding: int,
        vocabulary: int,
        steps_per_op: int,
    ) -> None:
        super().__init__()
        del steps, steps_per_op  # any
        self.source = nn.Embedding(vocabulary, embedding)
        self.encoder = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.target = nn.Embedding(vocabulary, embedding)
        self.decoder = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.score = nn.Linear(hidden, hidden, bias=False)
        self.combine = nn.Linear(2 * hidden, hidden, bias=False)
        self.project = nn.Linear(hidden, vocabulary)
        self.links = [
            *links_of("encoder.embed.0", self.source),
            *lstm_links(_recurrent("encoder.lstm", layers), self.encoder),
            *links_of("decoder.embed.0", self.target),
            *lstm_links(_recurrent("decoder.lstm", layers), self.decoder),
            # h W_a s is a dense layer of h with the transposed kernel.
            Link("attention.0.score_kernel", self.score, "weight", order=(1, 0)),
            Link("attention.0.kernel", self.combine, "weight"),
            *links_of("project.0", self.project),
        ]

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory, state = self.encoder(self.source(source))
        y, _ = self.decoder(self.target(target), state)
        context = F.scaled_dot_product_attention(self.score(y), memory, memory, scale=1.0)
        y = torch.tanh(self.combine(torch.cat([context, y], -1)))
        return self.project(y)  # type: ignore[no-any-return]


def _recurrent(prefix: str, layers: int) -> list[str]:
    return [f"{prefix}{layer}.0" for layer in range(1, layers + 1)]


class Block(nn.Module):
    """A transformer's: attention and two dense layers, each beside a shortcut."""

    def __init__(self, hidden: int, heads: int, name: str) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)
        self.expand = nn.Linear(hidden, 4 * hidden)
        self.contract = nn.Linear(4 * hidden, hidden)
        self.links = [
            *links_of(f"{name}.norm1", self.norm1),
            *joint_links([f"{name}.{part}" for part in ("query", "key", "value")], self.qkv),
            *links_of(f"{name}.output", self.output),
            *links_of(f"{name}.norm2", self.norm2),
            *links_of(f"{name}.expand", self.expand),
            *links_of(f"{name}.contract", self.contract),
        ]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, steps, width = x.shape
        parts = self.qkv(self.norm1(x)).view(n, steps, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(y.transpose(1, 2).reshape(n, steps, width))
        return x + self.contract(F.gelu(self.expand(self.norm2(x))))  # type: ignore[no-any-return]


class Transformer(Twin):
    """A decoder-only transformer; the output layer shares the embedding's table."""

    def __init__(
        self, *, steps: int, layers: int, hidden: int, heads: int, vocabulary: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(steps, hidden)
        # As in GPT-2. With PyTorch's default, probabilities are nearly 0 or 1 and gradients
        # denormal, with which arithmetic takes several times as long.
        for table in (self.embed, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        blocks = [Block(hidden, heads, f"block{i}") for i in range(1, layers + 1)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(hidden)
        self.links = [
            *links_of("embed", self.embed),
            *links_of("positions", self.positions),
            *(link for block in blocks for link in block.links),
            *links_of("norm", self.norm),
        ]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.positions.weight
        return F.linear(self.norm(self.blocks(x)), self.embed.weight)


TORCH_ZOO: dict[str, Callable[..., Twin]] = {
    "alexnet": AlexNet,
    "inception_v3": InceptionV3,
    "lenet": LeNet,
    "mlp": MLP,
    "nmt": NMT,
    "resnet101": ResNet101,
    "rnnlm": RNNLM,
    "rnntc": RNNTC,
    "transformer": Transformer,
}


def build(name: str, sizes: Mapping[str, Any]) -> Twin:
    """A network, with flexlegion's default for every size that is not given."""
    return TORCH_ZOO[name](**(ZOO[name].sizes | dict(sizes)))


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over samples (and steps) of the cross-entropy with class numbers."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())
