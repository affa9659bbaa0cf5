"""The zoo's networks of images in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pytorch.residual import ConvNorm, Size
from pytorch.weights import Dropout, Link, Twin, links_of


def _pair(value: int | Size) -> Size:
    return (value, value) if isinstance(value, int) else value


def _out(size: Size, kernel: int, stride: int = 1, padding: int = 0) -> Size:
    """Height and width after a convolution or pooling."""
    h, w = ((extent + 2 * padding - kernel) // stride + 1 for extent in size)
    return h, w


class LeNet(Twin):
    """LeNet-5."""

    def __init__(self, input_shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        *size, channels = input_shape
        h, w = (((extent - 4) // 2 - 4) // 2 for extent in size)
        self.c1, self.c3 = nn.Conv2d(channels, 6, 5), nn.Conv2d(6, 16, 5)
        self.c5, self.f6 = nn.Linear(16 * h * w, 120), nn.Linear(120, 84)
        self.output = nn.Linear(84, classes)
        self.links = [
            *links_of("c1", self.c1),
            *links_of("c3", self.c3),
            *links_of("c5", self.c5, (16, h, w)),
            *links_of("f6", self.f6),
            *links_of("output", self.output),
        ]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(torch.tanh(self.c1(x)), 2)
        x = F.max_pool2d(torch.tanh(self.c3(x)), 2)
        x = torch.tanh(self.c5(x.flatten(1)))
        return self.output(torch.tanh(self.f6(x)))  # type: ignore[no-any-return]


class AlexNet(Twin):
    """AlexNet in one tower."""

    def __init__(self, input_shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        height, width, channels = input_shape
        size = _out(_out((height, width), 11, 4, 2), 3, 2)
        h, w = _out(_out(size, 3, 2), 3, 2)
        relu = nn.ReLU(inplace=True)
        convs = [
            nn.Conv2d(channels, 64, 11, stride=4, padding=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.Conv2d(256, 256, 3, padding=1),
        ]
        dense = [nn.Linear(256 * h * w, 4096), nn.Linear(4096, 4096), nn.Linear(4096, classes)]
        self.dropouts = {"dropout6": Dropout(0.5, (256, h, w)), "dropout7": Dropout(0.5)}
        self.layers = nn.Sequential(
            *(convs[0], relu, nn.MaxPool2d(3, 2)),
            *(convs[1], relu, nn.MaxPool2d(3, 2)),
            *(convs[2], relu, convs[3], relu, convs[4], relu, nn.MaxPool2d(3, 2)),
            nn.Flatten(),
            *(self.dropouts["dropout6"], dense[0], relu),
            *(self.dropouts["dropout7"], dense[1], relu, dense[2]),
        )
        for i, conv in enumerate(convs, 1):
            self.links += links_of(f"conv{i}", conv)
        for i, layer in enumerate(dense, 6):
            self.links += links_of(f"fc{i}", layer, (256, h, w) if i == 6 else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class VGG16(Twin):
    """VGG-16."""

    def __init__(
        self, input_shape: tuple[int, int, int], classes: int, *, width: int, hidden: int
    ) -> None:
        super().__init__()
        relu = nn.ReLU(inplace=True)
        height, wide, channels = input_shape
        layers: list[nn.Module] = []
        for block, count in enumerate((2, 2, 3, 3, 3), 1):
            for i in range(1, count + 1):
                conv = nn.Conv2d(channels, width * min(2 ** (block - 1), 8), 3, padding=1)
                self.links += links_of(f"conv{block}_{i}", conv)
                layers += [conv, relu]
                channels = conv.out_channels
            layers.append(nn.MaxPool2d(2))
            height, wide = height // 2, wide // 2
        self.dropouts = {"dropout6": Dropout(0.5), "dropout7": Dropout(0.5)}
        image = (channels, height, wide)
        dense = [nn.Linear(channels * height * wide, hidden), nn.Linear(hidden, hidden)]
        dense.append(nn.Linear(hidden, classes))
        for i, layer in enumerate(dense, 6):
            self.links += links_of(f"fc{i}", layer, image if i == 6 else None)
        self.layers = nn.Sequential(
            *(*layers, nn.Flatten()),
            *(dense[0], relu, self.dropouts["dropout6"]),
            *(dense[1], relu, self.dropouts["dropout7"], dense[2]),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Branches(nn.Module):
    """Branches of one input, joined by channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class InceptionModules:
    """Inception-v3's modules, named as flexlegion names them; each takes its input's channels."""

    def __init__(self, links: list[Link], depth_multiplier: float) -> None:
        self.links = links
        self.depth_multiplier = depth_multiplier

    def scaled(self, filters: int) -> int:
        """Channels of a convolution."""
        return max(1, int(filters * self.depth_multiplier))

    def conv(
        self,
        channels: int,
        name: str,
        filters: int,
        kernel: int | Size,
        stride: int = 1,
        same: bool = True,
    ) -> ConvNorm:
        """A convolution of `channels` that are scaled already."""
        kernel = _pair(kernel)
        padding = (kernel[0] // 2, kernel[1] // 2) if same and stride == 1 else 0
        pair = (channels, self.scaled(filters))
        return ConvNorm(self.links, name, pair, kernel, stride, padding, epsilon=1e-3)

    def chain(
        self, channels: int, name: str, *layers: tuple[str, int, int | Size, int]
    ) -> nn.Sequential:
        """Convolutions one after the other, each (part, filters, kernel, stride)."""
        modules = []
        for part, filters, kernel, stride in layers:
            modules.append(self.conv(channels, f"{name}.{part}", filters, kernel, stride))
            channels = self.scaled(filters)
        return nn.Sequential(*modules)

    def pool_branch(self, channels: int, name: str, filters: int) -> nn.Sequential:
        """Average of 3x3 positions, then a 1x1 convolution."""
        conv = self.conv(channels, f"{name}.pool1x1", filters, 1)
        return nn.Sequential(nn.AvgPool2d(3, 1, 1), conv)

    def stem(self, channels: int) -> nn.Sequential:
        """To 192 channels."""
        return nn.Sequential(
            self.conv(channels, "stem.conv1", 32, 3, 2),
            self.conv(self.scaled(32), "stem.conv2", 32, 3, same=False),
            self.conv(self.scaled(32), "stem.conv3", 64, 3),
            nn.MaxPool2d(3, 2),
            self.conv(self.scaled(64), "stem.conv4", 80, 1),
            self.conv(self.scaled(80), "stem.conv5", 192, 3, same=False),
            nn.MaxPool2d(3, 2),
        )

    def module_a(self, channels: int, name: str, pool_filters: int) -> Branches:
        """5x5 convolutions as two of 3x3 in one branch."""
        return Branches(
            self.chain(channels, name, ("1x1", 64, 1, 1)),
            self.chain(channels, name, ("5x5_1", 48, 1, 1), ("5x5_2", 64, 5, 1)),
            self.chain(
                channels, name, ("3x3_1", 64, 1, 1), ("3x3_2", 96, 3, 1), ("3x3_3", 96, 3, 1)
            ),
            self.pool_branch(channels, name, pool_filters),
        )

    def reduction_a(self, channels: int) -> Branches:
        """Halves the image."""
        name = "reduce_a"
        return Branches(
            self.chain(channels, name, ("3x3", 384, 3, 2)),
            self.chain(
                *(channels, name),
                *(("double_1", 64, 1, 1), ("double_2", 96, 3, 1), ("double_3", 96, 3, 2)),
            ),
            nn.MaxPool2d(3, 2),
        )

    def module_b(self, channels: int, name: str, inner: int) -> Branches:
        """7x7 convolutions as 1x7 and 7x1."""
        row, column = (1, 7), (7, 1)
        return Branches(
            self.chain(channels, name, ("1x1", 192, 1, 1)),
            self.chain(
                *(channels, name, ("7x7_1", inner, 1, 1)),
                *(("7x7_2", inner, row, 1), ("7x7_3", 192, column, 1)),
            ),
            self.chain(
                *(channels, name, ("double_1", inner, 1, 1)),
                *(("double_2", inner, column, 1), ("double_3", inner, row, 1)),
                *(("double_4", inner, column, 1), ("double_5", 192, row, 1)),
            ),
            self.pool_branch(channels, name, 192),
        )

    def reduction_b(self, channels: int) -> Branches:
        """Halves the image."""
        name = "reduce_b"
        return Branches(
            self.chain(channels, name, ("3x3_1", 192, 1, 1), ("3x3_2", 320, 3, 2)),
            self.chain(
                *(channels, name, ("7x7_1", 192, 1, 1), ("7x7_2", 192, (1, 7), 1)),
                *(("7x7_3", 192, (7, 1), 1), ("7x7_4", 192, 3, 2)),
            ),
            nn.MaxPool2d(3, 2),
        )

    def module_c(self, channels: int, name: str) -> Branches:
        """3x3 convolutions as 1x3 beside 3x1."""

        def beside(channels: int, part: str) -> Branches:
            row = self.conv(channels, f"{name}.{part}a", 384, (1, 3))
            return Branches(row, self.conv(channels, f"{name}.{part}b", 384, (3, 1)))

        inner = self.scaled(384)
        b = self.chain(channels, name, ("3x3_1", 384, 1, 1))
        c = self.chain(channels, name, ("double_1", 448, 1, 1), ("double_2", 384, 3, 1))
        return Branches(
            self.chain(channels, name, ("1x1", 320, 1, 1)),
            nn.Sequential(b, beside(inner, "3x3_2")),
            nn.Sequential(c, beside(inner, "double_3")),
            self.pool_branch(channels, name, 192),
        )


class InceptionV3(Twin):
    """Inception-v3 without the auxiliary classifier."""

    def __init__(
        self, input_shape: tuple[int, int, int], classes: int, *, depth_multiplier: float
    ) -> None:
        super().__init__()
        modules = InceptionModules(self.links, depth_multiplier)

        def total(*filters: int) -> int:
            return sum(map(modules.scaled, filters))

        layers: list[nn.Module] = [modules.stem(input_shape[2])]
        channels = total(192)
        for i, pool_filters in enumerate((32, 64, 64), 1):
            layers.append(modules.module_a(channels, f"a{i}", pool_filters))
            channels = total(64, 64, 96, pool_filters)
        layers.append(modules.reduction_a(channels))
        channels += total(384, 96)
        for i, inner in enumerate((128, 160, 160, 192), 1):
            layers.append(modules.module_b(channels, f"b{i}", inner))
            channels = total(192, 192, 192, 192)
        layers.append(modules.reduction_b(channels))
        channels += total(320, 192)
        for i in (1, 2):
            layers.append(modules.module_c(channels, f"c{i}"))
            channels = total(320, 384, 384, 384, 384, 192)
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.dropout = Dropout(0.5)
        self.dropouts = {"dropout": self.dropout}
        self.output = nn.Linear(channels, classes)
        self.links += links_of("output", self.output)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.dropout(self.layers(x)))  # type: ignore[no-any-return]
