"""The zoo's networks in PyTorch, as its users write them; the sizes are those of flexlegion.zoo."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from flexlegion.zoo import ZOO
from pytorch.clicks import DLRM, WideDeep
from pytorch.decoders import Llama, Mixtral, MoE
from pytorch.images import VGG16, AlexNet, InceptionV3, LeNet
from pytorch.residual import InsightFace, ResNet
from pytorch.transformers import BERT, GPT, Transformer, ViT
from pytorch.weights import Link, Twin, links_of, lstm_links


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


TORCH_ZOO: dict[str, Callable[..., Twin]] = {
    "alexnet": AlexNet,
    "bert": BERT,
    "dlrm": DLRM,
    "gpt": GPT,
    "inception_v3": InceptionV3,
    "insightface": InsightFace,
    "lenet": LeNet,
    "llama": Llama,
    "mixtral": Mixtral,
    "mlp": MLP,
    "moe": MoE,
    "nmt": NMT,
    "resnet101": ResNet,
    "resnet152": ResNet,
    "resnet50": ResNet,
    "rnnlm": RNNLM,
    "rnntc": RNNTC,
    "transformer": Transformer,
    "vgg16": VGG16,
    "vit": ViT,
    "wide_deep": WideDeep,
}


def build(name: str, sizes: Mapping[str, Any]) -> Twin:
    """A network, with flexlegion's default for every size that is not given."""
    return TORCH_ZOO[name](**(ZOO[name].sizes | dict(sizes)))


def loss_of(name: str, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What a network minimises: its loss's mean over samples (and steps) whose label is not -1."""
    if ZOO[name].loss == "binary_crossentropy":
        return F.binary_cross_entropy_with_logits(output, labels)
    if ZOO[name].loss == "arcface":
        output = arcface(output, labels)
    return F.cross_entropy(output.flatten(0, -2), labels.flatten(), ignore_index=-1)


def arcface(
    cosines: torch.Tensor, labels: torch.Tensor, scale: float = 64.0, margin: float = 0.5
) -> torch.Tensor:
    """Logits of ArcFace (Deng et al. 2019), with a line where the margin would pass pi."""
    own = cosines.gather(1, labels[:, None])
    angle = own.acos()
    line = own - margin * math.sin(margin)
    moved = torch.where(angle + margin < math.pi, (angle + margin).cos(), line)
    return scale * cosines.scatter(1, labels[:, None], moved)
