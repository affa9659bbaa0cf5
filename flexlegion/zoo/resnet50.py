"""ResNet-50 (He, Zhang, Ren, Sun 2016: Deep residual learning for image recognition).

The 3x3 convolution of a block halves the image, not the first 1x1, which costs 4.1 instead of
3.8 billion multiply-adds an image. 25.6 million weights; 68.9 with ``width_factor=2``, as Wide
ResNet-50-2.
"""

from __future__ import annotations

from flexlegion.model.model import Model
from flexlegion.zoo.residual import residual_network


def resnet50(
    model: Model,
    input_shape: tuple[int, ...] = (224, 224, 3),
    classes: int = 1000,
    *,
    blocks: tuple[int, ...] = (3, 4, 6, 3),
    width: int = 64,
    width_factor: int = 1,
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
        Channels after the first convolution, and of the first stage, whose blocks have four times
        as many outside; each stage doubles them.
    width_factor
        How many times a stage's channels the 3x3 convolutions have: 1, or 2 in Wide ResNets
        (Zagoruyko, Komodakis 2016).
    """
    residual_network(model, "resnet50", input_shape, classes, blocks, width, width_factor)
