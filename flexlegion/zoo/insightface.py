"""Face recognition by a margin softmax over all persons (Deng et al. 2019, ArcFace; InsightFace).

A residual network turns an image into an embedding; the output are the cosines of its angles to a
vector a person, of which there may be millions. To recognise persons who were not trained, compare
their embeddings: ``model.set_outputs`` makes those of the layer ``embedding`` the output.

The blocks are ResNet-50's (He et al. 2016, Table 1), before a dense layer that reads the whole
image; InsightFace's own backbones have blocks of two 3x3 convolutions, and keep the image larger.
"""

from __future__ import annotations

from flexlegion.base.errors import UserError
from flexlegion.model.model import Model
from flexlegion.zoo.residual import residual_trunk
from flexlegion.zoo.unrolled import positive


def insightface(
    model: Model,
    input_shape: tuple[int, ...] = (112, 112, 3),
    classes: int = 85_742,
    *,
    blocks: tuple[int, ...] = (3, 4, 6, 3),
    width: int = 64,
    embedding: int = 512,
) -> None:
    """Add the layers; the input is an image (height, width, channel), the output cosines (classes).

    Parameters
    ----------
    model
        Where to.
    input_shape
        Shape of an image, of at least 32x32 pixels.
    classes
        Persons; MS1MV2 has 85,742.
    blocks
        Blocks of each stage; every stage but the first halves the image.
    width
        Channels after the first convolution, and inner channels of the first stage's blocks; each
        stage doubles them.
    embedding
        Width of the embedding.
    """
    if len(input_shape) != 3 or min(input_shape[:2]) < 32:
        raise UserError(
            "insightface takes images (height, width, channel) of at least 32x32 pixels, "
            f"but the data have shape {list(input_shape)}"
        )
    positive(
        "insightface",
        classes=classes,
        width=width,
        embedding=embedding,
        **{f"blocks[{i}]": n for i, n in enumerate(blocks)},
    )
    x = residual_trunk(model, model.input(input_shape, name="image"), blocks, width)
    x = model.dense(model.flatten(x, name="flatten"), embedding, name="embedding")
    model.cosine(x, classes, name="cosines")
