"""AlexNet (Krizhevsky, Sutskever, Hinton 2012), as in Krizhevsky's one weird trick (2014).

Five convolutions and three dense layers in one tower, 61.1 million weights; without the local
response normalisation, which later networks dropped.
"""

from __future__ import annotations

from flexlegion.base.errors import UserError
from flexlegion.model.model import Model


def alexnet(
    model: Model, input_shape: tuple[int, ...] = (224, 224, 3), classes: int = 1000
) -> None:
    """Add the layers; the input is an image (height, width, channel), 224x224x3 in the paper."""
    if len(input_shape) != 3 or min(input_shape[:2]) < 63:
        raise UserError(
            "alexnet takes images (height, width, channel) of at least 63x63 pixels, "
            f"but the data have shape {list(input_shape)}"
        )
    x = model.input(input_shape, name="image")
    x = model.conv2d(x, 64, 11, stride=4, padding=2, activation="relu", name="conv1")
    x = model.pool2d(x, 3, stride=2, name="pool1")
    x = model.conv2d(x, 192, 5, padding=2, activation="relu", name="conv2")
    x = model.pool2d(x, 3, stride=2, name="pool2")
    x = model.conv2d(x, 384, 3, padding=1, activation="relu", name="conv3")
    x = model.conv2d(x, 256, 3, padding=1, activation="relu", name="conv4")
    x = model.conv2d(x, 256, 3, padding=1, activation="relu", name="conv5")
    x = model.pool2d(x, 3, stride=2, name="pool5")
    x = model.flatten(x, name="flatten")
    x = model.dropout(x, 0.5, name="dropout6")
    x = model.dense(x, 4096, activation="relu", name="fc6")
    x = model.dropout(x, 0.5, name="dropout7")
    x = model.dense(x, 4096, activation="relu", name="fc7")
    x = model.dense(x, classes, name="fc8")
    model.softmax(x, name="softmax")
