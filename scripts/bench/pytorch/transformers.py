"""The zoo's transformers in PyTorch; the sizes are those of flexlegion.zoo."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from flexlegion.zoo.bert import EPSILON, SEGMENTS
from flexlegion.zoo.bert import PRESETS as BERT_PRESETS
from flexlegion.zoo.blocks import chosen_sizes
from flexlegion.zoo.gpt import PRESETS as GPT_PRESETS
from pytorch.weights import Link, Twin, joint_links, links_of, table_of

NORMS = ("norm1", "norm2")
BATCH_SIZE = 6  # that a capacity is a multiple of an even share of


class Block(nn.Module):
    """A transformer's: attention and two dense layers, each beside a shortcut.

    It normalises what these read, or, if not `before`, the sums; `gelu` is how GELU is computed.
    """

    def __init__(
        self, hidden: int, heads: int, name: str, gelu: str = "none", before: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.gelu, self.before = heads, gelu, before
        self.norm1, self.norm2 = (nn.LayerNorm(hidden, 1e-5 if before else 1e-12) for _ in "12")
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
        """Attention with its projections; causal in blocks that normalise before."""
        n, steps, width = x.shape
        parts = self.qkv(x).view(n, steps, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.before)
        return self.output(y.transpose(1, 2).reshape(n, steps, width))  # type: ignore[no-any-return]

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """The two dense layers."""
        return self.contract(F.gelu(self.expand(x), approximate=self.gelu))  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.before:
            x = x + self.attend(self.norm1(x))
            return x + self.feed_forward(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.feed_forward(x))  # type: ignore[no-any-return]


class Transformer(Twin):
    """A decoder-only transformer; the output layer shares the embedding's table."""

    gelu = "none"

    def __init__(
        self, *, steps: int, layers: int, hidden: int, heads: int, vocabulary: int
    ) -> None:
        super().__init__()
        self.embed, self.positions = table_of(vocabulary, hidden), table_of(steps, hidden)
        blocks = [Block(hidden, heads, f"block{i}", self.gelu) for i in range(1, layers + 1)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(hidden)
        self.links = [
            *links_of("embed", self.embed),
            *links_of("positions", self.positions),
            *(link for block in blocks for link in block.links),
            *links_of("norm", self.norm),
        ]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.positions.weight
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
    ) -> None:
        layers, hidden, heads = chosen_sizes(GPT_PRESETS, preset, layers, hidden, heads)
        super().__init__(
            steps=steps, layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary
        )


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
    ) -> None:
        super().__init__()
        layers, hidden, heads = chosen_sizes(BERT_PRESETS, preset, layers, hidden, heads)
        self.embed, self.positions = table_of(vocabulary, hidden), table_of(steps, hidden)
        self.segments = table_of(SEGMENTS, hidden)
        self.norm, self.transform_norm = (nn.LayerNorm(hidden, EPSILON) for _ in "12")
        blocks = [Block(hidden, heads, f"block{i}", before=False) for i in range(1, layers + 1)]
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
        x = F.gelu(self.transform(self.blocks(self.norm(x))))
        return F.linear(self.transform_norm(x), self.embed.weight, self.bias)


class ExpertBlock(nn.Module):
    """Attention with rotary positions, and experts of which each token takes some."""

    def __init__(
        self,
        name: str,
        hidden: int,
        heads: int,
        groups: int,
        units: int,
        experts: int,
        chosen: int,
        most: float,
        pieces: dict[str, tuple[int, int]],
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.chosen, self.most = heads, groups, chosen, most
        self.norm1, self.norm2 = (nn.RMSNorm(hidden, 1e-5) for _ in "12")
        keys = hidden // heads * groups
        self.query, self.key, self.value, self.output, self.router = (
            nn.Linear(hidden, width, bias=False) for width in (hidden, keys, keys, hidden, experts)
        )
        self.up, self.gate = (nn.Parameter(torch.empty(experts, units, hidden)) for _ in "12")
        self.down = nn.Parameter(torch.empty(experts, hidden, units))
        self.links = [
            *(
                link
                for part in ("query", "key", "value", "output", "router")
                for link in links_of(f"{name}.{part}", getattr(self, part))
            ),
            *(Link(f"{name}.{part}.gamma", getattr(self, part), "weight") for part in NORMS),
            *(
                Link(f"{name}.{piece}.{part}", self, part, rows=rows)
                for piece, rows in pieces.items()
                for part in ("up", "down", "gate")
            ),
        ]

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x), cos, sin)
        y = self.norm2(x).flatten(0, 1)
        shares = self.router(y).softmax(-1)
        values, which = shares.topk(self.chosen)
        gates = torch.zeros_like(shares).scatter(1, which, values / values.sum(-1, keepdim=True))
        gates = torch.where((gates != 0).cumsum(0) <= self.most, gates, 0)
        results = torch.zeros_like(y)
        for expert, (up, gate, down) in enumerate(zip(self.up, self.gate, self.down, strict=True)):
            rows = gates[:, expert].nonzero()[:, 0]
            hidden = F.silu(F.linear(y[rows], up)) * F.linear(y[rows], gate)
            result = F.linear(hidden, down) * gates[rows, expert, None]
            results = results.index_add(0, rows, result)
        return x + results.view_as(x)

    def attend(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Attention with its projections."""
        n, steps, hidden = x.shape

        def heads(layer: nn.Linear, count: int) -> torch.Tensor:
            y: torch.Tensor = layer(x)
            return y.view(n, steps, count, -1).transpose(1, 2)

        def turned(y: torch.Tensor) -> torch.Tensor:
            first, second = y.chunk(2, -1)
            return y * cos + torch.cat([-second, first], -1) * sin

        q, k = turned(heads(self.query, self.heads)), turned(heads(self.key, self.groups))
        v = heads(self.value, self.groups)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.output(y.transpose(1, 2).reshape(n, steps, hidden))  # type: ignore[no-any-return]


class MoE(Twin):
    """A language model with a mixture of experts in every block."""

    def __init__(
        self,
        *,
        steps: int,
        layers: int,
        hidden: int,
        heads: int,
        groups: int,
        units: int,
        experts: int,
        chosen: int,
        experts_per_op: int | None,
        capacity: float,
        vocabulary: int,
        batch_size: int = BATCH_SIZE,
    ) -> None:
        super().__init__()
        each = experts if experts_per_op is None else experts_per_op
        pieces = {
            f"experts{1 + first // each if each < experts else ''}": (first, first + each)
            for first in range(0, experts, each)
        }
        share = batch_size * steps * chosen / experts
        most = math.ceil(capacity * share) if capacity else math.inf
        self.embed = table_of(vocabulary, hidden)
        self.cos, self.sin = (
            nn.Parameter(torch.empty(1, steps, hidden // heads), requires_grad=False) for _ in "12"
        )
        sizes = (hidden, heads, groups, units, experts, chosen, most, pieces)
        blocks = [ExpertBlock(f"block{i + 1}", *sizes) for i in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(hidden, 1e-5)
        self.logits = nn.Linear(hidden, vocabulary, bias=False)
        self.links = [
            *links_of("embed", self.embed),
            *(Link(part, self, part) for part in ("cos", "sin")),
            *(link for block in blocks for link in block.links),
            Link("norm.gamma", self.norm, "weight"),
            *links_of("logits", self.logits),
        ]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.logits(self.norm(x))  # type: ignore[no-any-return]
