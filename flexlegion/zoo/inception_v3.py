"""Inception-v3 (Szegedy et al. 2016: Rethinking the inception architecture for computer vision).

Layer by layer as in TF-Slim's and torchvision's versions, of 94 convolutions without bias, each
followed by batch normalisation and ReLU; without the auxiliary classifier. 23.8 million weights,
and 5.7 billion multiply-adds an image.
"""

from __future__ import annotations

from typing import Literal

from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model

Kernel = int | tuple[int, int]
SMALLEST = 75  # pixels: the last modules' grid is then one position


class _Builder:
    """The modules; `depth_multiplier` scales the channels of every convolution, as in TF-Slim."""

    def __init__(self, model: Model, depth_multiplier: float) -> None:
        self.model = model
        self.depth_multiplier = depth_multiplier

    def conv(
        self, x: Tensor, name: str, filters: int, kernel: Kernel, stride: int = 1, same: bool = True
    ) -> Tensor:
        """Convolution, batch normalisation, ReLU."""
        filters = max(1, int(filters * self.depth_multiplier))
        padding: Literal["same", "valid"] = "same" if same and stride == 1 else "valid"
        x = self.model.conv2d(x, filters, kernel, stride, padding, use_bias=False, name=name)
        return self.model.batch_norm(x, "relu", name=f"{name}.bn")

    def pool_branch(self, x: Tensor, name: str, filters: int) -> Tensor:
        """Average of 3x3 positions, then a 1x1 convolution."""
        x = self.model.pool2d(x, 3, 1, "same", "average", name=f"{name}.pool")
        return self.conv(x, f"{name}.pool1x1", filters, 1)

    def stem(self, x: Tensor) -> Tensor:
        """Five convolutions and two poolings: 299x299x3 to 35x35x192."""
        x = self.conv(x, "stem.conv1", 32, 3, 2)
        x = self.conv(x, "stem.conv2", 32, 3, same=False)
        x = self.conv(x, "stem.conv3", 64, 3)
        x = self.model.pool2d(x, 3, 2, name="stem.pool1")
        x = self.conv(x, "stem.conv4", 80, 1)
        x = self.conv(x, "stem.conv5", 192, 3, same=False)
        return self.model.pool2d(x, 3, 2, name="stem.pool2")

    def module_a(self, x: Tensor, name: str, pool_filters: int) -> Tensor:
        """Figure 5: 35x35, 5x5 convolutions as two of 3x3 in one branch."""
        a = self.conv(x, f"{name}.1x1", 64, 1)
        b = self.conv(x, f"{name}.5x5_1", 48, 1)
        b = self.conv(b, f"{name}.5x5_2", 64, 5)
        c = self.conv(x, f"{name}.3x3_1", 64, 1)
        c = self.conv(c, f"{name}.3x3_2", 96, 3)
        c = self.conv(c, f"{name}.3x3_3", 96, 3)
        d = self.pool_branch(x, name, pool_filters)
        return self.model.concat([a, b, c, d], name=f"{name}.concat")

    def reduction_a(self, x: Tensor, name: str) -> Tensor:
        """Figure 10: 35x35 to 17x17."""
        a = self.conv(x, f"{name}.3x3", 384, 3, 2)
        b = self.conv(x, f"{name}.double_1", 64, 1)
        b = self.conv(b, f"{name}.double_2", 96, 3)
        b = self.conv(b, f"{name}.double_3", 96, 3, 2)
        c = self.model.pool2d(x, 3, 2, name=f"{name}.pool")
        return self.model.concat([a, b, c], name=f"{name}.concat")

    def module_b(self, x: Tensor, name: str, inner: int) -> Tensor:
        """Figure 6: 17x17, 7x7 convolutions as 1x7 and 7x1."""
        a = self.conv(x, f"{name}.1x1", 192, 1)
        b = self.conv(x, f"{name}.7x7_1", inner, 1)
        b = self.conv(b, f"{name}.7x7_2", inner, (1, 7))
        b = self.conv(b, f"{name}.7x7_3", 192, (7, 1))
        c = self.conv(x, f"{name}.double_1", inner, 1)
        for i, kernel in enumerate([(7, 1), (1, 7), (7, 1)], 2):
            c = self.conv(c, f"{name}.double_{i}", inner, kernel)
        c = self.conv(c, f"{name}.double_5", 192, (1, 7))
        d = self.pool_branch(x, name, 192)
        return self.model.concat([a, b, c, d], name=f"{name}.concat")

    def reduction_b(self, x: Tensor, name: str) -> Tensor:
        """17x17 to 8x8."""
        a = self.conv(x, f"{name}.3x3_1", 192, 1)
        a = self.conv(a, f"{name}.3x3_2", 320, 3, 2)
        b = self.conv(x, f"{name}.7x7_1", 192, 1)
        b = self.conv(b, f"{name}.7x7_2", 192, (1, 7))
        b = self.conv(b, f"{name}.7x7_3", 192, (7, 1))
        b = self.conv(b, f"{name}.7x7_4", 192, 3, 2)
        c = self.model.pool2d(x, 3, 2, name=f"{name}.pool")
        return self.model.concat([a, b, c], name=f"{name}.concat")

    def module_c(self, x: Tensor, name: str) -> Tensor:
        """Figure 7: 8x8, 3x3 convolutions as 1x3 beside 3x1."""
        a = self.conv(x, f"{name}.1x1", 320, 1)
        b = self.conv(x, f"{name}.3x3_1", 384, 1)
        c = self.conv(x, f"{name}.double_1", 448, 1)
        c = self.conv(c, f"{name}.double_2", 384, 3)
        parts = [a]
        for branch, stem in ((b, "3x3_2"), (c, "double_3")):
            parts.append(self.conv(branch, f"{name}.{stem}a", 384, (1, 3)))
            parts.append(self.conv(branch, f"{name}.{stem}b", 384, (3, 1)))
        parts.append(self.pool_branch(x, name, 192))
        return self.model.concat(parts, name=f"{name}.concat")


def inception_v3(
    model: Model,
    input_shape: tuple[int, ...] = (299, 299, 3),
    classes: int = 1000,
    *,
    depth_multiplier: float = 1.0,
) -> None:
    """Add the layers; the input is an image (height, width, channel), 299x299x3 in the paper.

    Parameters
    ----------
    model
        Where to.
    input_shape
        Shape of an image, of at least 75x75 pixels.
    classes
        Width of the output.
    depth_multiplier
        Scales the channels of all convolutions.
    """
    if len(input_shape) != 3 or min(input_shape[:2]) < SMALLEST:
        raise UserError(
            f"inception_v3 takes images (height, width, channel) of at least {SMALLEST}x{SMALLEST} "
            f"pixels, but the data have shape {list(input_shape)}"
        )
    if not 0 < depth_multiplier <= 100:
        raise UserError(
            f"inception_v3: depth_multiplier has to be above 0 and at most 100, "
            f"not {depth_multiplier}"
        )
    modules = _Builder(model, depth_multiplier)
    x = modules.stem(model.input(input_shape, name="image"))
    for i, pool_filters in enumerate((32, 64, 64), 1):
        x = modules.module_a(x, f"a{i}", pool_filters)
    x = modules.reduction_a(x, "reduce_a")
    for i, inner in enumerate((128, 160, 160, 192), 1):
        x = modules.module_b(x, f"b{i}", inner)
    x = modules.reduction_b(x, "reduce_b")
    for i in (1, 2):
        x = modules.module_c(x, f"c{i}")
    grid = (x.shape[1], x.shape[2])
    x = model.pool2d(x, grid, kind="average", name="pool")
    x = model.dropout(model.flatten(x, name="flatten"), 0.5, name="dropout")
    model.softmax(model.dense(x, classes, name="output"), name="softmax")
