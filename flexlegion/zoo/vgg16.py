"""VGG-16 (Simonyan, Zisserman 2015), configuration D of its Table 1.

Thirteen 3x3 convolutions and three dense layers, 138.4 million weights.
"""

from __future__ import annotations

from flexlegion.model.model import Model
from flexlegion.zoo.residual import check_images
from flexlegion.zoo.unrolled import positive

BLOCKS = (2, 2, 3, 3, 3)  # convolutions of each image size
WIDEST = 8  # times the channels of the first


def vgg16(
    model: Model,
    input_shape: tuple[int, ...] = (224, 224, 3),
    classes: int = 1000,
    *,
    width: int = 64,
    hidden: int = 4096,
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
    width
        Channels of the first convolutions; they are doubled with each pooling, up to eight times.
    hidden
        Units of the two dense layers before the output.
    """
    check_images("vgg16", input_shape)
    positive("vgg16", classes=classes, width=width, hidden=hidden)
    x = model.input(input_shape, name="image")
    for block, count in enumerate(BLOCKS):
        filters = width * min(2**block, WIDEST)
        for i in range(count):
            x = model.conv2d(
                x,
                filters,
                3,
                padding=1,
                activation="relu",
                kernel_initializer="he_normal",
                name=f"conv{block + 1}_{i + 1}",
            )
        x = model.pool2d(x, 2, name=f"pool{block + 1}")
    x = model.flatten(x, name="flatten")
    for name in ("fc6", "fc7"):
        x = model.dense(x, hidden, "relu", kernel_initializer="he_normal", name=name)
        x = model.dropout(x, 0.5, name=f"dropout{name[-1]}")
    model.softmax(model.dense(x, classes, name="fc8"), name="softmax")
