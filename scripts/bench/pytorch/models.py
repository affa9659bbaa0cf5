"""PyTorch models to import: classes of torchvision and transformers, small, with random weights.

`MODELS` names functions without parameters, each of which returns a module and example inputs, so
that ``flexlegion search --model scripts/bench/pytorch/models.py:resnet50`` finds a strategy for it.
Dropout is off, so that training can be compared; samples differ, and so do their sizes from those
that the models are known for, which would take minutes here.
"""

# mypy: disable-error-code="no-untyped-call, import-untyped, no-any-return, index"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 4
Built = tuple[nn.Module, Any]
MODELS: dict[str, Callable[..., Built]] = {}
OWN_CHOICE: list[str] = []  # those that are not among the twenty


def _declare_vision_operators() -> None:
    """Let torchvision be imported beside a build of torch for which its operators are missing."""
    try:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define(
            "qnms(Tensor dets, Tensor scores, Tensor probs, float iou_threshold) -> Tensor"
        )
    except RuntimeError:  # they are there
        return
    globals()["_LIBRARY"] = library  # what it declares lives as long as it does


def vision() -> Any:
    """torchvision's models."""
    try:
        import torchvision
    except RuntimeError:
        _declare_vision_operators()
        import torchvision
    return torchvision.models


def hugging_face() -> Any:
    """The package transformers."""
    vision()  # which transformers imports where it is installed
    import transformers

    return transformers


def _model(function: Callable[[], Built]) -> Callable[..., Built]:
    def build(seed: int = 0) -> Built:
        torch.manual_seed(seed)
        return function()

    build.__name__, build.__doc__ = function.__name__, function.__doc__
    MODELS[function.__name__] = build
    return build


def _own(function: Callable[[], Built]) -> Callable[..., Built]:
    OWN_CHOICE.append(function.__name__)
    return _model(function)


def images(size: int, samples: int = BATCH) -> torch.Tensor:
    """Random images, square, of three channels."""
    return torch.randn(samples, 3, size, size)


def _tokens(vocabulary: int, length: int) -> torch.Tensor:
    return torch.randint(1, vocabulary, (BATCH, length))


@_model
def resnet50() -> Built:
    return vision().resnet50(num_classes=10), images(64)


@_model
def resnext50() -> Built:
    return vision().resnext50_32x4d(num_classes=10), images(64)


@_model
def vgg16() -> Built:
    return vision().vgg16(num_classes=10, dropout=0.0), images(32)


@_model
def inception_v3() -> Built:
    return vision().inception_v3(num_classes=10, init_weights=False, dropout=0.0), images(299, 2)


@_model
def densenet121() -> Built:
    return vision().densenet121(num_classes=10), images(64)


class _DoubleConvolution(nn.Sequential):
    def __init__(self, channels: int, filters: int) -> None:
        layers: list[nn.Module] = []
        for before in (channels, filters):
            layers += [
                nn.Conv2d(before, filters, 3, padding=1, bias=False),
                nn.BatchNorm2d(filters),
                nn.ReLU(inplace=True),
            ]
        super().__init__(*layers)


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015) with two steps down and up."""

    def __init__(self, classes: int = 5, width: int = 16) -> None:
        super().__init__()
        self.down1 = _DoubleConvolution(3, width)
        self.down2 = _DoubleConvolution(width, 2 * width)
        self.bottom = _DoubleConvolution(2 * width, 4 * width)
        self.pool = nn.MaxPool2d(2)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join2 = _DoubleConvolution(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join1 = _DoubleConvolution(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        x = self.up2(self.bottom(self.pool(second)))
        x = self.up1(self.join2(torch.cat([x, second], 1)))
        return self.head(self.join1(torch.cat([x, first], 1)))


@_model
def unet() -> Built:
    return UNet(), images(32)


class LanguageModel(nn.Module):
    """Two LSTM layers between an embedding and a projection that shares its table."""

    def __init__(self, vocabulary: int = 200, units: int = 32, bidirectional: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, units)
        self.lstm = nn.LSTM(units, units, 2, batch_first=True, bidirectional=bidirectional)
        self.projection = nn.Linear(units, vocabulary)
        self.projection.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.projection(states)


@_model
def lstm_lm() -> Built:
    return LanguageModel(), _tokens(200, 12)


class DLRM(nn.Module):
    """Deep learning recommendation (Naumov et al. 2019): tables, products of pairs, two MLPs."""

    def __init__(self, tables: int = 6, rows: int = 100, units: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            [nn.EmbeddingBag(rows, units, mode="sum") for _ in range(tables)]
        )
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, units), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(pairs + units, 32), nn.ReLU(), nn.Linear(32, 1))
        rows_of, columns = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("rows", rows_of)
        self.register_buffer("columns", columns)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        parts = [table(sparse[:, i : i + 1]) for i, table in enumerate(self.tables)]
        vectors = torch.stack([x, *parts], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = products[:, self.rows, self.columns]
        return torch.sigmoid(self.top(torch.cat([x, pairs], 1)))


@_model
def dlrm() -> Built:
    return DLRM(), (torch.randn(BATCH, 13), torch.randint(0, 100, (BATCH, 6)))


@_model
def mobilenet_v3() -> Built:
    return vision().mobilenet_v3_large(num_classes=10, dropout=0.0), images(64, 8)


@_model
def vit_b_16() -> Built:
    models = vision()
    model = models.VisionTransformer(32, 8, 2, 4, 64, 128, num_classes=10)
    nn.init.normal_(model.heads.head.weight, std=0.1)  # zero at first, which stops all gradients
    return model, images(32)


@_model
def convnext_tiny() -> Built:
    return vision().convnext_tiny(num_classes=10, stochastic_depth_prob=0.0), images(64)


@_model
def hf_vit() -> Built:
    transformers = hugging_face()
    config = transformers.ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=10,
    )
    return transformers.ViTForImageClassification(config), {"pixel_values": images(32)}


@_model
def whisper_enc() -> Built:
    hugging_face()
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=64,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=128,
        num_mel_bins=20,
        max_source_positions=24,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
    )
    module = WhisperEncoder(config)
    module.training = (
        False  # its own layerdrop, of rate 0, draws a number that export cannot follow
    )
    return module, {"input_features": torch.randn(BATCH, 20, 48)}


@_model
def efficientnet_b0() -> Built:
    model = vision().efficientnet_b0(num_classes=10, dropout=0.0, stochastic_depth_prob=0.0)
    return model, images(64, 8)


@_model
def llama() -> Built:
    transformers = hugging_face()
    config = transformers.LlamaConfig(
        vocab_size=200,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config), {"input_ids": _tokens(200, 16)}


@_model
def gpt2() -> Built:
    transformers = hugging_face()
    config = transformers.GPT2Config(
        vocab_size=200,
        n_positions=32,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": _tokens(200, 16)}


@_model
def bert() -> Built:
    transformers = hugging_face()
    config = transformers.BertConfig(
        vocab_size=200,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    mask = (torch.arange(16) < torch.tensor([[16], [12], [9], [14]])).long()
    return transformers.BertForMaskedLM(config), {
        "input_ids": _tokens(200, 16),
        "attention_mask": mask,
    }


@_model
def swin_t() -> Built:
    models = vision()
    model = models.SwinTransformer(
        [2, 2], 24, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.0, num_classes=10
    )
    return model, images(32)


@_model
def t5() -> Built:
    transformers = hugging_face()
    config = transformers.T5Config(
        vocab_size=200,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        use_cache=False,
    )
    inputs = {"input_ids": _tokens(200, 12), "decoder_input_ids": _tokens(200, 10)}
    return transformers.T5ForConditionalGeneration(config), inputs


@_model
def mixtral() -> Built:
    transformers = hugging_face()
    config = transformers.MixtralConfig(
        vocab_size=200,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=64,
        use_cache=False,
    )
    module = transformers.MixtralForCausalLM(config)
    # Grouped products, the form that is used unless said, do not take double precision.
    module.set_experts_implementation("batched_mm")
    return module, {"input_ids": _tokens(200, 16)}


@_own
def regnet_y() -> Built:
    return vision().regnet_y_400mf(num_classes=10), images(64)


@_own
def squeezenet() -> Built:
    return vision().squeezenet1_1(num_classes=10, dropout=0.0), images(63)


@_own
def distilbert() -> Built:
    transformers = hugging_face()
    config = transformers.DistilBertConfig(
        vocab_size=200,
        dim=64,
        n_layers=2,
        n_heads=4,
        hidden_dim=128,
        max_position_embeddings=32,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
        num_labels=5,
    )
    mask = (torch.arange(16) < torch.tensor([[16], [12], [9], [14]])).long()
    inputs = {"input_ids": _tokens(200, 16), "attention_mask": mask}
    return transformers.DistilBertForSequenceClassification(config), inputs


@_own
def qwen2() -> Built:
    transformers = hugging_face()
    config = transformers.Qwen2Config(
        vocab_size=200,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        use_cache=False,
    )
    return transformers.Qwen2ForCausalLM(config), {"input_ids": _tokens(200, 16)}


class Tagger(nn.Module):
    """A convolution over words, then LSTM layers in both directions, and tags."""

    def __init__(self, vocabulary: int = 200, units: int = 24, tags: int = 7) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, units)
        self.convolution = nn.Conv1d(units, units, 3, padding=1)
        self.lstm = nn.LSTM(units, units, 2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(2 * units, tags)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        x = torch.relu(self.convolution(x)).transpose(1, 2)
        return self.tags(self.lstm(x)[0])


class Mixture(nn.Module):
    """Of experts, all of which compute every token; a token's gates choose two of them."""

    def __init__(self, width: int, units: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, units), nn.SiLU(), nn.Linear(units, width))
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.router(x).softmax(-1)
        values, which = shares.topk(2)
        gates = torch.zeros_like(shares).scatter(-1, which, values / values.sum(-1, keepdim=True))
        for i, expert in enumerate(self.experts):
            x = x + gates[..., i, None] * expert(x)
        return x


@_own
def mixture() -> Built:
    return nn.Sequential(nn.Embedding(200, 24), Mixture(24, 32, 4), nn.Linear(24, 7)), _tokens(
        200, 12
    )


@_own
def tagger() -> Built:
    return Tagger(), _tokens(200, 12)


class Decoder(nn.Module):
    """Images made smaller and larger again, by all sorts of padding, kernels and activations."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=2, dilation=2)
        self.down = nn.Conv2d(width, 2 * width, 2, padding="same")
        self.up = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)
        self.further = nn.ConvTranspose2d(2 * width, width, 3, 2, padding=1, output_padding=1)
        self.slope = nn.PReLU(width)
        self.head = nn.Conv2d(4 * width, 4, 3, padding=1, padding_mode="reflect")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.elu(self.first(x), 0.7)
        half = F.leaky_relu(self.down(x)[:, :, ::2, 1::2], 0.2)
        near = F.interpolate(half, scale_factor=2.0, mode="nearest")
        smooth = F.interpolate(half, scale_factor=2, mode="bilinear", align_corners=False)
        sharp = self.slope(self.further(half))
        turned = torch.roll(self.up(half), (1, -2), (2, 3))
        joined = torch.cat([near[:, :4] + smooth[:, 4:8], sharp, turned], 1)
        joined = F.pad(joined, (0, 0, 0, 0, 0, self.head.in_channels - joined.shape[1]))
        return F.normalize(self.head(joined), dim=1)


@_own
def decoder() -> Built:
    return Decoder(), images(12)


class GatedTagger(nn.Module):
    """Sums of some words' vectors beside gated recurrent layers in both directions."""

    def __init__(self, vocabulary: int = 200, units: int = 20, tags: int = 7) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(vocabulary, units, mode="mean")
        self.embedding = nn.Embedding(vocabulary, units)
        self.gru = nn.GRU(units, units, 2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(2 * units, tags)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        whole = self.bags(tokens[:, 2:7])
        first = self.embedding(tokens[:, 0])
        x = self.embedding(tokens) + (whole + first)[:, None]
        return self.tags(self.gru(x)[0])


@_own
def gated_tagger() -> Built:
    return GatedTagger(), _tokens(200, 12)


@_own
def shufflenet() -> Built:
    return vision().shufflenet_v2_x0_5(num_classes=10), images(64)
