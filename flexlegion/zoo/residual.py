"""What residual networks are made of (He, Zhang, Ren, Sun 2016: Deep residual learning).

Bottleneck blocks as in Table 1, with projections where the shape changes (option B). As in most
implementations since, a block that halves the image does so in its 3x3 convolution, not in the
first 1x1. Wide ResNets (Zagoruyko, Komodakis 2016) have more channels inside the blocks.
"""

from __future__ import annotations

from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model
from flexlegion.zoo.unrolled import positive

EXPANSION = 4  # a block's output has as many times the channels that its stage has


def residual_network(
    model: Model,
    network: str,
    input_shape: tuple[int, ...],
    classes: int,
    blocks: tuple[int, ...],
    width: int,
    width_factor: int,
) -> None:
    """Add the layers; the input is an image (height, width, channel).

    Parameters
    ----------
    model
        Where to.
    network
        For messages.
    input_shape
        Shape of an image, of at least 32x32 pixels.
    classes
        Width of the output.
    blocks
        Blocks of each stage; every stage but the first halves the image.
    width
        Channels after the first convolution, and of the first stage, whose blocks have four times
        as many outside; each stage doubles them.
    width_factor
        How many times a stage's channels the 3x3 convolutions have: 1, or 2 in Wide ResNets.
    """
    check_images(network, input_shape)
    positive(network, classes=classes, width=width, width_factor=width_factor)
    check_blocks(network, blocks)
    x = residual_trunk(model, model.input(input_shape, name="image"), blocks, width, width_factor)
    grid = (x.shape[1], x.shape[2])
    x = model.flatten(model.pool2d(x, grid, kind="average", name="pool"), name="flatten")
    model.softmax(model.dense(x, classes, name="output"), name="softmax")


def residual_trunk(
    model: Model, x: Tensor, blocks: tuple[int, ...], width: int, width_factor: int = 1
) -> Tensor:
    """A residual network up to its last block, whose image is not pooled yet.

    Parameters
    ----------
    model
        Where to.
    x
        Images.
    blocks, width, width_factor
        As of `residual_network`.
    """
    x = convolution(model, x, width, 7, 2, "conv1")
    x = model.batch_norm(x, "relu", 1e-5, name="conv1.bn")
    x = model.pool2d(x, 3, 2, 1, name="pool1")
    for stage, count in enumerate(blocks):
        channels = width * 2**stage
        for i in range(count):
            stride = 2 if stage > 0 and i == 0 else 1
            name = f"stage{stage + 1}.block{i + 1}"
            x = _block(model, x, channels * width_factor, EXPANSION * channels, stride, name)
    return x


def convolution(
    model: Model, x: Tensor, filters: int, kernel: int, stride: int, name: str
) -> Tensor:
    """Without a bias; it keeps the image's size, but for the stride."""
    return model.conv2d(
        x,
        filters,
        kernel,
        stride,
        kernel // 2,
        use_bias=False,
        kernel_initializer="he_normal",
        name=name,
    )


def check_images(network: str, input_shape: tuple[int, ...], least: int = 32) -> None:
    """Raise `UserError` unless that is an image's shape, of at least so many pixels a side."""
    if len(input_shape) != 3 or min(input_shape[:2]) < least:
        raise UserError(
            f"{network} takes images (height, width, channel) of at least {least}x{least} pixels, "
            f"but the data have shape {list(input_shape)}"
        )


def check_blocks(network: str, blocks: tuple[int, ...]) -> None:
    """Raise `UserError` unless there are stages, and each has blocks."""
    if not blocks:
        raise UserError(f"{network}: blocks has to name the blocks of one stage or more")
    positive(network, **{f"blocks[{i}]": n for i, n in enumerate(blocks)})


def _block(model: Model, x: Tensor, inner: int, outer: int, stride: int, name: str) -> Tensor:
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""
    y = convolution(model, x, inner, 1, 1, f"{name}.conv1")
    y = model.batch_norm(y, "relu", 1e-5, name=f"{name}.conv1.bn")
    y = convolution(model, y, inner, 3, stride, f"{name}.conv2")
    y = model.batch_norm(y, "relu", 1e-5, name=f"{name}.conv2.bn")
    y = convolution(model, y, outer, 1, 1, f"{name}.conv3")
    if y.shape != x.shape:
        x = convolution(model, x, outer, 1, stride, f"{name}.shortcut")
        x = model.batch_norm(x, epsilon=1e-5, name=f"{name}.shortcut.bn")
    return model.batch_norm(y, "relu", 1e-5, name=f"{name}.conv3.bn", residual=x)
