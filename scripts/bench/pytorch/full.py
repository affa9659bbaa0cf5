"""PyTorch models as people train them: of torchvision and transformers, in their usual sizes.

`FULL` names functions that return a module and example inputs, whose first size is the batch.
Weights are random, and dropout is off.
"""

# mypy: disable-error-code="no-untyped-call, import-untyped, no-any-return"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytorch.models import Built, LanguageModel, UNet, hugging_face, images, vision

FULL: dict[str, Callable[[], Built]] = {}
CLASSES = 1000


def _full(function: Callable[[], Built]) -> Callable[[], Built]:
    FULL[function.__name__] = function
    return function


def _tokens(samples: int, steps: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(1, vocabulary, (samples, steps))


def _image_net(name: str, samples: int, **options: Any) -> None:
    """One of torchvision's, for images of 224 x 224 pixels."""

    def build() -> Built:
        return getattr(vision(), name)(num_classes=CLASSES, **options), images(224, samples)

    FULL[name] = build


_image_net("resnet50", 8)
_image_net("vgg16", 4, dropout=0.0)
_image_net("densenet121", 8)
_image_net("mobilenet_v3_large", 16, dropout=0.0)
_image_net("efficientnet_b0", 8, dropout=0.0, stochastic_depth_prob=0.0)
_image_net("shufflenet_v2_x1_0", 16)
_image_net("convnext_tiny", 4, stochastic_depth_prob=0.0)
_image_net("vit_b_16", 4)
_image_net("swin_t", 4)


@_full
def unet() -> Built:
    return UNet(classes=21, width=64), images(128, 4)


@_full
def lstm_lm() -> Built:
    return LanguageModel(10000, 650), _tokens(20, 35, 10000)


@_full
def bert_base() -> Built:
    package = hugging_face()
    config = package.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return package.BertForMaskedLM(config), {"input_ids": _tokens(4, 128, config.vocab_size)}


@_full
def gpt2() -> Built:
    package = hugging_face()
    config = package.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return package.GPT2LMHeadModel(config), {"input_ids": _tokens(4, 128, config.vocab_size)}


@_full
def llama() -> Built:
    package = hugging_face()
    config = package.LlamaConfig(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        use_cache=False,
    )
    return package.LlamaForCausalLM(config), {"input_ids": _tokens(4, 128, config.vocab_size)}


@_full
def t5_small() -> Built:
    package = hugging_face()
    config = package.T5Config(dropout_rate=0.0, use_cache=False)
    inputs = {
        "input_ids": _tokens(4, 128, config.vocab_size),
        "decoder_input_ids": _tokens(4, 64, config.vocab_size),
    }
    return package.T5ForConditionalGeneration(config), inputs
