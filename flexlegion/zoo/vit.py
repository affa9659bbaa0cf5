"""The Vision Transformer, ViT (Dosovitskiy et al. 2021), by its sizes.

An image's patches are the tokens, with trained positions, after a class token; pre-normalised
blocks, whose attention sees the whole image. What becomes of the class token is normalised and
classified by one dense layer, which is what the paper fine-tunes with; in pre-training it has a
hidden layer more. Queries, keys and values have a matrix each. There is no dropout.
"""

from __future__ import annotations

from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model
from flexlegion.ops.shape import Slice
from flexlegion.zoo.blocks import (
    NORMAL,
    attend,
    check_heads,
    chosen_sizes,
    feed_forward,
    presets_of,
)
from flexlegion.zoo.unrolled import positive

EPSILON = 1e-6
# Dosovitskiy et al., Table 1; a block's dense layers are four times as wide as it.
PRESETS = presets_of(
    "patch layers hidden heads",
    {"b-16": (16, 12, 768, 12), "l-16": (16, 24, 1024, 16), "h-14": (14, 32, 1280, 16)},
)


def vit(
    model: Model,
    input_shape: tuple[int, ...] = (224, 224, 3),
    classes: int = 1000,
    *,
    preset: str = "b-16",
    patch: int | None = None,
    layers: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
) -> None:
    """Add the layers; the input is an image (height, width, channel), 224x224x3 in the paper.

    Sizes that are not given are the preset's.

    Parameters
    ----------
    model
        Where to.
    input_shape
        Shape of an image, whose sides are multiples of a patch's.
    classes
        Width of the output.
    preset
        A published size: b-16 (86.6 million weights), l-16 (304 million) or h-14 (632 million).
    patch
        Height and width of a patch.
    layers
        Blocks.
    hidden, heads
        Width of the blocks, a multiple of their number of heads.
    """
    sizes = chosen_sizes(PRESETS, preset, patch=patch, layers=layers, hidden=hidden, heads=heads)
    positive("vit", classes=classes, **sizes)
    side, width, heads = sizes["patch"], sizes["hidden"], sizes["heads"]
    check_heads("vit", width, heads)
    if len(input_shape) != 3 or any(n < side or n % side != 0 for n in input_shape[:2]):
        raise UserError(
            f"vit takes images (height, width, channel) of {side}x{side} patches, but the data "
            f"have shape {list(input_shape)}"
        )
    image = model.input(input_shape, name="image")
    x = model.conv2d(image, width, side, side, kernel_initializer=NORMAL, name="patches")
    x = model.reshape(x, (x.shape[1] * x.shape[2], width), name="sequence")
    token = model.parameter((1, width), "zeros", name="class")
    token = model.expand(token, (1, width), name="class.expanded")
    x = model.concat([token, x], axis=1, name="tokens")
    x = model.position_embedding(x, NORMAL, name="positions")
    for layer in range(1, sizes["layers"] + 1):
        x = _block(model, x, heads, f"block{layer}")
    x = model.graph.add(Slice(1, 0, 1), [x], "first")  # nothing needs the other parts
    x = model.flatten(x, name="flatten")
    x = model.layer_norm(x, EPSILON, name="norm")
    x = model.dense(x, classes, kernel_initializer=NORMAL, name="output")
    model.softmax(x, name="softmax")


def _block(model: Model, x: Tensor, heads: int, name: str) -> Tensor:
    """Attention and two dense layers, each of what is normalised, and beside a shortcut."""
    y = model.layer_norm(x, EPSILON, name=f"{name}.norm1")
    x = model.add([x, attend(model, y, heads, False, name)], name=f"{name}.add1")
    y = model.layer_norm(x, EPSILON, name=f"{name}.norm2")
    return model.add([x, feed_forward(model, y, "gelu", name)], name=f"{name}.add2")
