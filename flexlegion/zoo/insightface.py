"""Face recognition by a margin softmax over all persons (Deng et al. 2019, ArcFace; InsightFace).

A residual network turns an image into an embedding; the output are the cosines of its angles to a
vector a person, of which there may be millions. To recognise persons who were not trained, compare
their embeddings: ``model.set_outputs`` makes those of the layer ``embedding`` the output.

The backbone is ResNet-50 (He et al. 2016, Table 1), before a dense layer that reads the whole
image, or IR-50 or IR-100, InsightFace's own: blocks of two 3x3 convolutions with normalisations
before, between and after, and images that are halved by blocks alone (Deng et al., section 3.1, and
iresnet50 and iresnet100 of arcface_torch). Unlike there, the scales of the last normalisation, that
of the embedding, are trained, too. There is no dropout before the embedding.
"""

from __future__ import annotations

from flexlegion.base.suggestions import unknown
from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model
from flexlegion.zoo.residual import check_blocks, check_images, convolution, residual_trunk
from flexlegion.zoo.unrolled import positive

# By name: blocks of each stage.
BACKBONES = {"resnet50": (3, 4, 6, 3), "ir50": (3, 4, 14, 3), "ir100": (3, 13, 30, 3)}
EPSILON = 1e-5


def insightface(
    model: Model,
    input_shape: tuple[int, ...] = (112, 112, 3),
    classes: int = 85_742,
    *,
    backbone: str = "resnet50",
    blocks: tuple[int, ...] | None = None,
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
    backbone
        One of resnet50, ir50 and ir100.
    blocks
        Blocks of each stage, the backbone's unless given; every stage halves the image, but not the
        first of ResNet-50.
    width
        Channels after the first convolution, and of the first stage, whose blocks have four times
        as many outside in ResNet-50; each stage doubles them.
    embedding
        Width of the embedding.
    """
    if backbone not in BACKBONES:
        raise unknown("backbone", backbone, BACKBONES)
    blocks = BACKBONES[backbone] if blocks is None else blocks
    check_images("insightface", input_shape)
    check_blocks("insightface", blocks)
    positive("insightface", classes=classes, width=width, embedding=embedding)
    image = model.input(input_shape, name="image")
    own = backbone != "resnet50"
    x = (_trunk if own else residual_trunk)(model, image, blocks, width)
    x = model.dense(model.flatten(x, name="flatten"), embedding, name="embedding")
    if own:
        x = model.batch_norm(x, epsilon=EPSILON, name="embedding.bn")
    model.cosine(x, classes, name="cosines")


def _trunk(model: Model, x: Tensor, blocks: tuple[int, ...], width: int) -> Tensor:
    """The backbone of InsightFace up to its last normalisation."""
    x = convolution(model, x, width, 3, 1, "conv1")
    x = model.batch_norm(x, epsilon=EPSILON, name="conv1.bn")
    x = model.prelu(x, name="conv1.prelu")
    for stage, count in enumerate(blocks):
        for i in range(count):
            name = f"stage{stage + 1}.block{i + 1}"
            x = _block(model, x, width * 2**stage, 2 if i == 0 else 1, name)
    return model.batch_norm(x, epsilon=EPSILON, name="trunk.bn")


def _block(model: Model, x: Tensor, filters: int, stride: int, name: str) -> Tensor:
    """Two 3x3 convolutions beside a shortcut."""
    y = model.batch_norm(x, epsilon=EPSILON, name=f"{name}.bn")
    y = convolution(model, y, filters, 3, 1, f"{name}.conv1")
    y = model.batch_norm(y, epsilon=EPSILON, name=f"{name}.conv1.bn")
    y = model.prelu(y, name=f"{name}.prelu")
    y = convolution(model, y, filters, 3, stride, f"{name}.conv2")
    if y.shape != x.shape:
        x = convolution(model, x, filters, 1, stride, f"{name}.shortcut")
        x = model.batch_norm(x, epsilon=EPSILON, name=f"{name}.shortcut.bn")
    return model.batch_norm(y, epsilon=EPSILON, name=f"{name}.conv2.bn", residual=x)
