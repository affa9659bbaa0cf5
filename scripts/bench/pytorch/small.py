"""The networks of models.py that are too deep to train beside PyTorch, with fewer blocks.

Rounding decides which way a ReLU goes whose input is next to zero. A network of millions of them is
trained differently by any two programs in single precision, PyTorch's own among them with another
memory layout. These have every kind of block, but few of each. Transformers are small in
models.py itself.
"""

# mypy: disable-error-code="no-untyped-call, import-untyped, no-any-return, index"

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from pytorch.models import MODELS, Built, UNet, images, vision

SMALL: dict[str, Callable[..., Built]] = {}


def trained(name: str, seed: int = 0) -> Built:
    """The network of this name as it is trained beside PyTorch."""
    return SMALL.get(name, MODELS[name])(seed)


def _small(function: Callable[[Any], Built]) -> Callable[..., Built]:
    def build(seed: int = 0) -> Built:
        models = vision()
        torch.manual_seed(seed)
        return function(models)

    SMALL[function.__name__] = build
    return build


@_small
def resnet50(models: Any) -> Built:
    block = models.resnet.Bottleneck
    sizes = {"width_per_group": 16, "zero_init_residual": True}
    return models.ResNet(block, [2, 1, 1, 1], num_classes=10, **sizes), images(32, 8)


@_small
def resnext50(models: Any) -> Built:
    block = models.resnet.Bottleneck
    sizes = {"groups": 8, "width_per_group": 4, "zero_init_residual": True}
    return models.ResNet(block, [2, 1, 1, 1], num_classes=10, **sizes), images(32, 8)


@_small
def unet(_: Any) -> Built:
    return UNet(width=4), images(16)


@_small
def vgg16(models: Any) -> Built:
    module = models.vgg16(num_classes=10, dropout=0.0)
    module.classifier[0] = nn.Linear(512 * 7 * 7, 64)
    module.classifier[3] = nn.Linear(64, 64)
    module.classifier[6] = nn.Linear(64, 10)
    return module, images(32, 4)


@_small
def inception_v3(models: Any) -> Built:
    inception, narrow = models.inception, 8  # an eighth of the channels

    def convolution(inputs: int, outputs: int, **sizes: Any) -> nn.Module:
        inputs = inputs if inputs == 3 else inputs // narrow
        return inception.BasicConv2d(inputs, outputs // narrow, **sizes)

    kinds = (getattr(inception, f"Inception{kind}") for kind in ("A", "B", "C", "D", "E", "Aux"))
    blocks = [convolution, *(partial(kind, conv_block=convolution) for kind in kinds)]
    sizes: dict[str, Any] = {"aux_logits": False, "init_weights": False, "dropout": 0.0}
    module = models.Inception3(num_classes=10, inception_blocks=blocks, **sizes)
    for again in ("Mixed_5c", "Mixed_6c", "Mixed_6d", "Mixed_6e", "Mixed_7c"):
        setattr(module, again, nn.Identity())
    module.Mixed_5d = inception.InceptionA(256, pool_features=64, conv_block=convolution)
    module.fc = nn.Linear(2048 // narrow, 10)
    return module, images(75, 8)


@_small
def densenet121(models: Any) -> Built:
    module = models.DenseNet(8, (2, 2, 2, 2), 16, num_classes=10)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):  # with biases near 0, norm0's scale has no gradient:
            nn.init.normal_(part.bias)  # it is undone in each block by its own normalisation
    return module, images(32, 8)


@_small
def mobilenet_v3(models: Any) -> Built:
    block = partial(models.mobilenetv3.InvertedResidualConfig, width_mult=1.0)
    blocks = [
        block(16, 3, 16, 16, False, "RE", 1, 1),
        block(16, 3, 64, 24, False, "RE", 2, 1),
        block(24, 5, 72, 40, True, "RE", 2, 1),
        block(40, 3, 120, 40, True, "HS", 2, 1),
        block(40, 3, 120, 40, True, "HS", 1, 1),
    ]
    return models.MobileNetV3(blocks, 64, num_classes=10, dropout=0.0), images(32, 16)


@_small
def efficientnet_b0(models: Any) -> Built:
    block = models.efficientnet.MBConvConfig
    blocks = [block(1, 3, 1, 32, 16, 1), block(6, 3, 2, 16, 24, 2), block(6, 5, 2, 24, 40, 2)]
    sizes: dict[str, Any] = {"num_classes": 10, "last_channel": 64}
    return models.EfficientNet(blocks, 0.0, stochastic_depth_prob=0.0, **sizes), images(32, 8)


@_small
def convnext_tiny(models: Any) -> Built:
    block = models.convnext.CNBlockConfig
    blocks = [block(24, 48, 1), block(48, 96, 2), block(96, None, 1)]
    scale = 0.1  # of a block; 1e-6 as by default leaves gradients below the rounding of weights
    return models.ConvNeXt(blocks, layer_scale=scale, num_classes=10), images(64, 4)


@_small
def regnet_y(models: Any) -> Built:
    parameters = models.regnet.BlockParams.from_init_params(
        depth=6, w_0=16, w_a=8.0, w_m=2.0, group_width=8, se_ratio=0.25
    )
    return models.RegNet(parameters, num_classes=10), images(32, 8)


@_small
def shufflenet(models: Any) -> Built:
    return models.ShuffleNetV2([2, 2, 2], [24, 24, 48, 96, 128], num_classes=10), images(32, 8)
