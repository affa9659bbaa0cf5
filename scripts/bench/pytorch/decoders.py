"""The zoo's decoders with rotary positions in PyTorch; the sizes are those of flexlegion.zoo."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from flexlegion.zoo.blocks import chosen_sizes
from flexlegion.zoo.llama import PRESETS as LLAMA_PRESETS
from flexlegion.zoo.mixtral import PRESETS as MIXTRAL_PRESETS
from pytorch.weights import Link, Twin, links_of, table_of

BATCH_SIZE = 6  # that a capacity is a multiple of an even share of


class Attention(nn.Module):
    """Causal, with rotary positions, and keys that queries share in groups."""

    def __init__(self, name: str, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        keys = hidden // heads * kv_heads
        self.query, self.output = (nn.Linear(hidden, hidden, bias=False) for _ in "12")
        self.key, self.value = (nn.Linear(hidden, keys, bias=False) for _ in "12")
        self.links = _links_of_layers(self, name, "query key value output")

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        n, steps, hidden = x.shape

        def heads(layer: nn.Linear, count: int) -> torch.Tensor:
            y: torch.Tensor = layer(x)
            return y.view(n, steps, count, -1).transpose(1, 2)

        def turned(y: torch.Tensor) -> torch.Tensor:
            first, second = y.chunk(2, -1)
            return y * cos + torch.cat([-second, first], -1) * sin

        q, k = turned(heads(self.query, self.heads)), turned(heads(self.key, self.kv_heads))
        v = heads(self.value, self.kv_heads)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.output(y.transpose(1, 2).reshape(n, steps, hidden))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """SwiGLU, or two layers with a ReLU."""

    def __init__(self, name: str, hidden: int, ffn: int, gated: bool = True) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, ffn, bias=False) if gated else None
        self.up, self.down = nn.Linear(hidden, ffn, bias=False), nn.Linear(ffn, hidden, bias=False)
        self.links = _links_of_layers(self, name, "gate up down" if gated else "up down")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        return self.down(y)  # type: ignore[no-any-return]


class Experts(nn.Module):
    """Of which each token takes some, and each at most so many tokens.

    `pieces` are the first and last experts of each of flexlegion's operators.
    """

    def __init__(
        self,
        name: str,
        hidden: int,
        ffn: int,
        gated: bool,
        experts: int,
        chosen: int,
        most: float,
        pieces: dict[str, tuple[int, int]],
    ) -> None:
        super().__init__()
        self.chosen, self.most = chosen, most
        self.router = nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, ffn, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, ffn))
        self.gate = nn.Parameter(torch.empty(experts, ffn, hidden)) if gated else None
        parts = ("up", "down", "gate") if gated else ("up", "down")
        self.links = [
            *_links_of_layers(self, name, "router"),
            *(
                Link(f"{name}.{piece}.{part}", self, part, rows=rows)
                for piece, rows in pieces.items()
                for part in parts
            ),
        ]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.flatten(0, 1)
        shares = self.router(y).softmax(-1)
        values, which = shares.topk(self.chosen)
        gates = torch.zeros_like(shares).scatter(1, which, values / values.sum(-1, keepdim=True))
        gates = torch.where((gates != 0).cumsum(0) <= self.most, gates, 0)
        results = torch.zeros_like(y)
        for expert in range(len(self.up)):
            rows = gates[:, expert].nonzero()[:, 0]
            hidden = F.linear(y[rows], self.up[expert])
            if self.gate is None:
                hidden = F.relu(hidden)
            else:
                hidden = F.silu(hidden) * F.linear(y[rows], self.gate[expert])
            result = F.linear(hidden, self.down[expert]) * gates[rows, expert, None]
            results = results.index_add(0, rows, result)
        return results.view_as(x)


class Block(nn.Module):
    """Attention and something else, each of what is normalised, and beside a shortcut."""

    def __init__(
        self, name: str, hidden: int, attention: Attention, other: FeedForward | Experts
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.RMSNorm(hidden, 1e-5) for _ in "12")
        self.attention, self.other = attention, other
        self.links = [
            Link(f"{name}.norm1.gamma", self.norm1, "weight"),
            Link(f"{name}.norm2.gamma", self.norm2, "weight"),
            *attention.links,
            *other.links,
        ]

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.other(self.norm2(x))  # type: ignore[no-any-return]


class Decoder(Twin):
    """Blocks between an embedding and an output layer; subclasses say what follows attention."""

    def __init__(
        self,
        *,
        steps: int,
        layers: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        vocabulary: int,
        **others: Any,
    ) -> None:
        super().__init__()
        self.embed = table_of(vocabulary, hidden)
        self.cos, self.sin = (
            nn.Parameter(torch.empty(1, steps, hidden // heads), requires_grad=False) for _ in "12"
        )
        names = [f"block{i}" for i in range(1, layers + 1)]
        blocks = [
            Block(
                name,
                hidden,
                Attention(name, hidden, heads, kv_heads),
                self.other(name, hidden, layer=layer, **others),
            )
            for layer, name in enumerate(names, 1)
        ]
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

    def other(self, name: str, hidden: int, **others: Any) -> FeedForward | Experts:
        """What follows attention in a block: of its number, and sizes that are not shared."""
        raise NotImplementedError

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.logits(self.norm(x))  # type: ignore[no-any-return]


class Llama(Decoder):
    """A language model with gated networks."""

    def __init__(self, *, preset: str, **given: int | None) -> None:
        sizes = chosen_sizes(LLAMA_PRESETS, preset, **given)
        del sizes["slowest"]  # cos and sin are loaded
        super().__init__(**sizes)

    def other(self, name: str, hidden: int, **others: Any) -> FeedForward | Experts:
        return FeedForward(name, hidden, others["ffn"])


class MoE(Decoder):
    """A language model with a mixture of experts in some blocks or all."""

    def __init__(
        self,
        *,
        steps: int,
        experts: int,
        chosen: int,
        experts_per_op: int | None,
        capacity: float,
        batch_size: int = BATCH_SIZE,
        **sizes: Any,
    ) -> None:
        each = experts if experts_per_op is None else experts_per_op
        pieces = {
            f"experts{1 + first // each if each < experts else ''}": (first, first + each)
            for first in range(0, experts, each)
        }
        share = batch_size * steps * chosen / experts
        most = math.ceil(capacity * share) if capacity else math.inf
        mixture = {"experts": experts, "chosen": chosen, "most": most, "pieces": pieces}
        super().__init__(steps=steps, mixture=mixture, **sizes)

    def other(self, name: str, hidden: int, **others: Any) -> FeedForward | Experts:
        ffn, gated = others["ffn"], others["gated"]
        if others["layer"] % others["every"] != 0:
            return FeedForward(name, hidden, ffn, gated)
        return Experts(name, hidden, ffn, gated, **others["mixture"])


class Mixtral(MoE):
    """A language model with gated experts in every block."""

    def __init__(
        self, *, preset: str, steps: int, experts_per_op: int | None, capacity: float, **given: Any
    ) -> None:
        sizes: dict[str, Any] = {**chosen_sizes(MIXTRAL_PRESETS, preset, **given)}
        super().__init__(
            every=1,
            gated=True,
            steps=steps,
            experts_per_op=experts_per_op,
            capacity=capacity,
            **sizes,
        )


def _links_of_layers(module: nn.Module, name: str, layers: str) -> list[Link]:
    return [
        link
        for layer in layers.split()
        for link in links_of(f"{name}.{layer}", getattr(module, layer))
    ]
