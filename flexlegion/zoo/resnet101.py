"""ResNet-101 (He, Zhang, Ren, Sun 2016: Deep residual learning for image recognition).

Bottleneck blocks as in Table 1, with projections where the shape changes (option B). As in most
implementations since, a block that halves the image does so in its 3x3 convolution, not in the
first 1x1, which costs 7.8 instead of 7.6 billion multiply-adds an image. 44.5 million weights.
"""

from __future__ import annotations

from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model
from flexlegion.zoo.unrolled import positive

EXPANSION = 4  # a block's output has as many times its inner channels


def _block(model: Model, x: Tensor, inner: int, stride: int, name: str) -> Tensor:
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    def conv(x: Tensor, part: str, filters: int, kernel: int, stride: int) -> Tensor:
        return model.conv2d(
            x,
            filters,
            kernel,
            stride,
            kernel // 2,
            use_bias=False,
            kernel_initializer="he_normal",
            name=f"{name}.{part}",
        )

    y = conv(x, "conv1", inner, 1, 1)
    y = model.batch_norm(y, "relu", 1e-5, name=f"{name}.conv1.bn")
    y = conv(y, "conv2", inner, 3, stride)
    y = model.batch_norm(y, "relu", 1e-5, name=f"{name}.conv2.bn")
    y = conv(y, "conv3", EXPANSION * inner, 1, 1)
    if y.shape != x.shape:
        x = conv(x, "shortcut", EXPANSION * inner, 1, stride)
        x = model.batch_norm(x, epsilon=1e-5, name=f"{name}.shortcut.bn")
    return model.batch_norm(y, "relu", 1e-5, name=f"{name}.conv3.bn", residual=x)


def residual_trunk(model: Model, x: Tensor, blocks: tuple[int, ...], width: int) -> Tensor:
    """A residual network up to its last block, whose image is not pooled yet.

    Parameters
    ----------
    model
        Where to.
    x
        Images.
    blocks, width
        As of `resnet101`.
    """
    x = model.conv2d(
        x, width, 7, 2, 3, use_bias=False, kernel_initializer="he_normal", name="conv1"
    )
    x = model.batch_norm(x, "relu", 1e-5, name="conv1.bn")
    x = model.pool2d(x, 3, 2, 1, name="pool1")
    for stage, count in enumerate(blocks):
        for i in range(count):
            stride = 2 if stage > 0 and i == 0 else 1
            x = _block(model, x, width * 2**stage, stride, f"stage{stage + 1}.block{i + 1}")
    return x


def resnet101(
    model: Model,
    input_shape: tuple[int, ...] = (224, 224, 3),
    classes: int = 1000,
    *,
    blocks: tuple[int, ...] = (3, 4, 23, 3),
    width: int = 64,
) -> None:
    """Add the layers; the input is an image (height, width, channel), 224x224x3 in the paper.

    Parameters
    ----------
    model
        Where to.
    input_shape
        Shape of an image, of at least 32x32 pixels.
    classes
        Width of the output.
    blocks
        Blocks of each stage; every stage but the first halves the image.
    width
        Channels after the first convolution, and inner channels of the first stage's blocks; each
        stage doubles them.
    """
    if len(input_shape) != 3 or min(input_shape[:2]) < 32:
        raise UserError(
            "resnet101 takes images (height, width, channel) of at least 32x32 pixels, "
            f"but the data have shape {list(input_shape)}"
        )
    positive("resnet101", width=width, **{f"blocks[{i}]": n for i, n in enumerate(blocks)})
    x = residual_trunk(model, model.input(input_shape, name="image"), blocks, width)
    grid = (x.shape[1], x.shape[2])
    x = model.flatten(model.pool2d(x, grid, kind="average", name="pool"), name="flatten")
    model.softmax(model.dense(x, classes, name="output"), name="softmax")
