"""LeNet-5 (LeCun, Bottou, Bengio, Haffner: Gradient-based learning for document recognition, 1998).

Section II.B gives the sizes: 5x5 convolutions to 6 and 16 maps with 2x2 subsampling between, then
120, 84 and 10 units. As is usual today, pooling takes the maximum, S2 and C3 are fully connected,
C5 is a dense layer, and the output a softmax.
"""

from __future__ import annotations

from flexlegion.base.errors import UserError
from flexlegion.model.model import Model


def lenet(model: Model, input_shape: tuple[int, ...] = (32, 32, 1), classes: int = 10) -> None:
    """Add the layers; the input is an image (height, width, channel), 32x32x1 in the paper."""
    if len(input_shape) != 3 or min(input_shape[:2]) < 16:
        raise UserError(
            "lenet takes images (height, width, channel) of at least 16x16 pixels, "
            f"but the data have shape {list(input_shape)}"
        )
    x = model.input(input_shape, name="image")
    x = model.conv2d(x, 6, 5, activation="tanh", name="c1")
    x = model.pool2d(x, 2, name="s2")
    x = model.conv2d(x, 16, 5, activation="tanh", name="c3")
    x = model.pool2d(x, 2, name="s4")
    x = model.flatten(x, name="flatten")
    x = model.dense(x, 120, activation="tanh", name="c5")
    x = model.dense(x, 84, activation="tanh", name="f6")
    x = model.dense(x, classes, name="output")
    model.softmax(x, name="softmax")
