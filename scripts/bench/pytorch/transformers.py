"""The zoo's transformers in PyTorch; the sizes are those of flexlegion.zoo."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from flexlegion.zoo.bert import EPSILON, SEGMENTS
from flexlegion.zoo.bert import PRESETS as BERT_PRESETS
from flexlegion.zoo.blocks import chosen_sizes
from flexlegion.zoo.gpt import PRESETS as GPT_PRESETS
from flexlegion.zoo.vit import EPSILON as VIT_EPSILON
from flexlegion.zoo.vit import PRESETS as VIT_PRESETS
from pytorch.weights import Link, Twin, joint_links, links_of, table_of


class Block(nn.Module):
    """A transformer's: attention and two dense layers, each beside a shortcut.

    It normalises what these read, or, if not `before`, the sums; `gelu` is how GELU is computed.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        name: str,
        *,
        gelu: str = "none",
        before: bool = True,
        causal: bool = True,
        epsilon: float = 1e-5,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.heads, self.gelu, self.before, self.causal = heads, gelu, before, causal
        self.norm1, self.norm2 = (nn.LayerNorm(hidden, epsilon) for _ in "12")
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)
        self.expand = nn.Linear(hidden, 4 * hidden)
        self.contract = nn.Linear(4 * hidden, hidden)
        self.links = [
            *links_of(f"{name}.norm1", self.norm1),
            *joint_links([f"{name}.{part}" for part in ("query", "key", "value")], self.qkv),
            *links_of(f"{name}.output", self.output),
            *links_of(f"{name}.norm2", self.norm2),
            *links_of(f"{name}.expand", self.expand),
            *links_of(f"{name}.contract", self.contract),
        ]

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Attention with its projections."""
        n, steps, width = x.shape
        parts = self.qkv(x).view(n, steps, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        rate = self.dropout.p if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=self.causal)
        return self.output(y.transpose(1, 2).reshape(n, steps, width))  # type: ignore[no-any-return]

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """The two dense layers."""
        return self.contract(F.gelu(self.expand(x), approximate=self.gelu))  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.before:
            x = x + self.dropout(self.attend(self.norm1(x)))
            return x + self.dropout(self.feed_forward(self.norm2(x)))  # type: ignore[no-any-return]
        x = self.norm1(x + self.dropout(self.attend(x)))
        return self.norm2(x + self.dropout(self.feed_forward(x)))  # type: ignore[no-any-return]


class Transformer(Twin):
    """A decoder-only transformer; the output layer shares the embedding's table."""

    gelu = "none"

    def __init__(
        self,
        *,
        steps: int,
        layers: int,
        hidden: int,
        heads: int,
        vocabulary: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embed, self.positions = table_of(vocabulary, hidden), table_of(steps, hidden)
        names = [f"block{i}" for i in range(1, layers + 1)]
        blocks = [Block(hidden, heads, name, gelu=self.gelu, dropout=dropout) for name in names]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(hidden)
        self.links = [
            *links_of("embed", self.embed),
            *links_of("positions", self.positions),
            *(link for block in blocks for link in block.links),
            *links_of("norm", self.norm),
        ]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.embed(tokens) + self.positions.weight)
        return F.linear(self.norm(self.blocks(x)), self.embed.weight)


class GPT(Transformer):
    """GPT-2 or GPT-3, by its preset."""

    gelu = "tanh"

    def __init__(
        self,
        *,
        preset: str,
        steps: int,
        layers: int | None,
        hidden: int | None,
        heads: int | None,
        vocabulary: int,
        dropout: float,
    ) -> None:
        sizes = chosen_sizes(GPT_PRESETS, preset, layers=layers, hidden=hidden, heads=heads)
        super().__init__(steps=steps, vocabulary=vocabulary, dropout=dropout, **sizes)


class BERT(Twin):
    """A masked language model; the output layer shares the embedding's table."""

    def __init__(
        self,
        *,
        preset: str,
        steps: int,
        layers: int | None,
        hidden: int | None,
        heads: int | None,
        vocabulary: int,
        predictions: int | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.predictions = predictions
        self.dropout = nn.Dropout(dropout)
        sizes = chosen_sizes(BERT_PRESETS, preset, layers=layers, hidden=hidden, heads=heads)
        layers, hidden, heads = sizes["layers"], sizes["hidden"], sizes["heads"]
        self.embed, self.positions = table_of(vocabulary, hidden), table_of(steps, hidden)
        self.segments = table_of(SEGMENTS, hidden)
        self.norm, self.transform_norm = (nn.LayerNorm(hidden, EPSILON) for _ in "12")
        names = [f"block{i}" for i in range(1, layers + 1)]
        kind: dict[str, Any] = {"before": False, "causal": False, "epsilon": EPSILON}
        blocks = [Block(hidden, heads, name, dropout=dropout, **kind) for name in names]
        self.blocks = nn.Sequential(*blocks)
        self.transform = nn.Linear(hidden, hidden)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.links = [
            *links_of("embed", self.embed),
            *links_of("positions", self.positions),
            *links_of("embed.segments", self.segments),
            *links_of("embed.norm", self.norm),
            *(link for block in blocks for link in block.links),
            *links_of("transform", self.transform),
            *links_of("transform.norm", self.transform_norm),
            Link("logits.bias", self, "bias"),
        ]

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.positions.weight + self.segments(segments)
        x = self.blocks(self.dropout(self.norm(x)))[:, : self.predictions]
        x = F.gelu(self.transform(x))
        return F.linear(self.transform_norm(x), self.embed.weight, self.bias)


class ViT(Twin):
    """An image's patches and a class token, which is classified in the end."""

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        classes: int,
        *,
        preset: str,
        patch: int | None,
        layers: int | None,
        hidden: int | None,
        heads: int | None,
    ) -> None:
        super().__init__()
        sizes = chosen_sizes(
            VIT_PRESETS, preset, patch=patch, layers=layers, hidden=hidden, heads=heads
        )
        side, width = sizes["patch"], sizes["hidden"]
        height, wide, channels = input_shape
        self.patches = nn.Conv2d(channels, width, side, side)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = table_of(height // side * (wide // side) + 1, width)
        names = [f"block{i}" for i in range(1, sizes["layers"] + 1)]
        kind: dict[str, Any] = {"causal": False, "epsilon": VIT_EPSILON}
        blocks = [Block(width, sizes["heads"], name, **kind) for name in names]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width, VIT_EPSILON)
        self.output = nn.Linear(width, classes)
        self.links = [
            *links_of("patches", self.patches),
            Link("class", self, "token"),
            *links_of("positions", self.positions),
            *(link for block in blocks for link in block.links),
            *links_of("norm", self.norm),
            *links_of("output", self.output),
        ]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions.weight
        return self.output(self.norm(self.blocks(x)[:, 0]))  # type: ignore[no-any-return]
