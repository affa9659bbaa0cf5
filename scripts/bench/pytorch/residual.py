"""The zoo's residual networks in PyTorch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from flexlegion.zoo.insightface import BACKBONES
from pytorch.weights import Link, Twin, links_of

Size = tuple[int, int]


class ConvNorm(nn.Module):
    """Convolution without bias, batch normalisation, and ReLU unless it is left out."""

    def __init__(
        self,
        links: list[Link],
        name: str,
        channels: tuple[int, int],
        kernel: int | Size,
        stride: int = 1,
        padding: int | Size = 0,
        epsilon: float = 1e-5,
        relu: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(*channels, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(channels[1], epsilon)
        self.relu = relu
        links += links_of(name, self.conv) + links_of(f"{name}.bn", self.norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x))
        return F.relu(x, inplace=True) if self.relu else x


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    def __init__(
        self, links: list[Link], name: str, channels: int, inner: int, out: int, stride: int
    ) -> None:
        super().__init__()
        self.conv1 = ConvNorm(links, f"{name}.conv1", (channels, inner), 1)
        self.conv2 = ConvNorm(links, f"{name}.conv2", (inner, inner), 3, stride, 1)
        self.conv3 = ConvNorm(links, f"{name}.conv3", (inner, out), 1, relu=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = ConvNorm(
                links, f"{name}.shortcut", (channels, out), 1, stride, relu=False
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv3(self.conv2(self.conv1(x)))
        return F.relu(y.add_(self.shortcut(x)), inplace=True)


def residual_trunk(
    links: list[Link], channels: int, blocks: tuple[int, ...], width: int, width_factor: int = 1
) -> nn.Sequential:
    """A residual network up to its last block."""
    layers: list[nn.Module] = [
        ConvNorm(links, "conv1", (channels, width), 7, 2, 3),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = width
    for stage, count in enumerate(blocks):
        inner, out = width * width_factor * 2**stage, 4 * width * 2**stage
        for i in range(count):
            stride = 2 if stage > 0 and i == 0 else 1
            name = f"stage{stage + 1}.block{i + 1}"
            layers.append(Bottleneck(links, name, channels, inner, out, stride))
            channels = out
    return nn.Sequential(*layers)


class ResNet(Twin):
    """A residual network, by its numbers of blocks."""

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        classes: int,
        *,
        blocks: tuple[int, ...],
        width: int,
        width_factor: int,
    ) -> None:
        super().__init__()
        self.trunk = residual_trunk(self.links, input_shape[2], blocks, width, width_factor)
        self.output = nn.Linear(4 * width * 2 ** (len(blocks) - 1), classes)
        self.links += links_of("output", self.output)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.trunk(x).mean((2, 3)))  # type: ignore[no-any-return]


class ImprovedBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut; InsightFace's."""

    def __init__(self, links: list[Link], name: str, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, 1e-5)
        self.conv1 = ConvNorm(links, f"{name}.conv1", (channels, out), 3, 1, 1, relu=False)
        self.prelu = nn.PReLU(out)
        self.conv2 = ConvNorm(links, f"{name}.conv2", (out, out), 3, stride, 1, relu=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = ConvNorm(
                links, f"{name}.shortcut", (channels, out), 1, stride, relu=False
            )
        links += links_of(f"{name}.bn", self.norm)
        links.append(Link(f"{name}.prelu.slope", self.prelu, "weight", view=(1, out)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv2(self.prelu(self.conv1(self.norm(x))))
        return y + self.shortcut(x)  # type: ignore[no-any-return]


def improved_trunk(
    links: list[Link], channels: int, blocks: tuple[int, ...], width: int
) -> nn.Sequential:
    """InsightFace's backbone up to its last normalisation."""
    prelu = nn.PReLU(width)
    layers: list[nn.Module] = [
        ConvNorm(links, "conv1", (channels, width), 3, 1, 1, relu=False),
        prelu,
    ]
    links.append(Link("conv1.prelu.slope", prelu, "weight", view=(1, width)))
    channels = width
    for stage, count in enumerate(blocks):
        out = width * 2**stage
        for i in range(count):
            name = f"stage{stage + 1}.block{i + 1}"
            layers.append(ImprovedBlock(links, name, channels, out, 2 if i == 0 else 1))
            channels = out
    norm = nn.BatchNorm2d(channels, 1e-5)
    links += links_of("trunk.bn", norm)
    return nn.Sequential(*layers, norm)


class InsightFace(Twin):
    """A residual network's embedding, and its cosines with a vector a person."""

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        classes: int,
        *,
        backbone: str,
        blocks: tuple[int, ...] | None,
        width: int,
        embedding: int,
    ) -> None:
        super().__init__()
        blocks = BACKBONES[backbone] if blocks is None else blocks
        own = backbone != "resnet50"
        trunk = improved_trunk if own else residual_trunk
        self.trunk = trunk(self.links, input_shape[2], blocks, width)
        halved = 2 ** (len(blocks) if own else 1 + len(blocks))
        height, wide = (-(-extent // halved) for extent in input_shape[:2])
        image = ((1 if own else 4) * width * 2 ** (len(blocks) - 1), height, wide)
        self.embedding = nn.Linear(math.prod(image), embedding)
        self.norm: nn.Module = nn.Identity()
        if own:
            self.norm = nn.BatchNorm1d(embedding, 1e-5)
            self.links += links_of("embedding.bn", self.norm)
        self.persons = nn.Linear(embedding, classes, bias=False)
        self.links += links_of("embedding", self.embedding, image)
        self.links += links_of("cosines", self.persons)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        embedded = F.normalize(self.norm(self.embedding(self.trunk(x).flatten(1))), dim=-1)
        return F.linear(embedded, F.normalize(self.persons.weight, dim=-1))
