"""A U-Net (Ronneberger et al. 2015): each pixel's class, from an image that is shrunk and grown.

Its first and last layers have large images and few channels, those between small images and many
channels. So what is best to split differs from layer to layer.
"""

from __future__ import annotations

import flexlegion as fl
from flexlegion.graph.tensor import Tensor


def model(
    batch_size: int = 16, size: int = 256, width: int = 32, levels: int = 3, classes: int = 21
) -> fl.Model:
    """Images in, the distribution of classes out, for each pixel."""
    net = fl.Model(batch_size)

    def convolve(x: Tensor, channels: int, name: str) -> Tensor:
        for number in (1, 2):
            x = net.conv2d(x, channels, 3, padding=1, activation="relu", name=f"{name}.{number}")
        return x

    x = net.input((size, size, 3), name="image")
    left = []
    for level in range(levels):
        x = convolve(x, width << level, f"down{level}")
        left.append(x)
        x = net.pool2d(x, 2, name=f"down{level}.pool")
    x = convolve(x, width << levels, "middle")
    for level in reversed(range(levels)):
        x = net.conv2d_transpose(x, width << level, 2, stride=2, name=f"up{level}.grow")
        x = convolve(net.concat([left[level], x]), width << level, f"up{level}")
    net.softmax(net.conv2d(x, classes, 1, name="classes"), name="pixels")
    net.loss = "sparse_categorical_crossentropy"
    return net
