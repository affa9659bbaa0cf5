"""A language model with mixtures of experts, as Mixtral (Jiang et al. 2024) or GShard.

Pre-normalised blocks of attention with rotary positions, whose queries share keys in groups, and of
experts: gated networks, of which a router chooses some for each token. The chosen ones' gates are a
softmax over their scores. No token is dropped, unless a capacity is asked for. There is no loss
that balances the experts' loads.

GShard (Lepikhin et al. 2021) has experts without a gate, in every other block: ``every=2``,
``gated=False``, ``capacity=2``, as many kv_heads as heads. It is a translator with an encoder, has
no rotary positions, balances loads by a loss, and sends tokens to their second expert at random.
"""

from __future__ import annotations

import math

from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model
from flexlegion.zoo.blocks import NORMAL
from flexlegion.zoo.rotary import decoder, gated_network, project
from flexlegion.zoo.unrolled import positive

SLOWEST = 1_000_000  # of the angles' rates, the last pair's is about one over this


def moe(
    model: Model,
    *,
    steps: int = 1024,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    kv_heads: int = 4,
    ffn: int = 2048,
    experts: int = 8,
    chosen: int = 2,
    every: int = 1,
    gated: bool = True,
    experts_per_op: int | None = None,
    capacity: float = 0.0,
    vocabulary: int = 32_000,
) -> None:
    """Add the layers; the input is tokens (steps), the output a distribution for each step.

    Parameters
    ----------
    model
        Where to.
    steps
        Length of a sequence.
    layers
        Blocks.
    hidden, heads, kv_heads
        Width of the blocks, a multiple of their number of heads; and heads of keys and values, each
        for as many heads of queries.
    ffn
        Width between the layers of an expert, and of a block without experts.
    experts, chosen
        Of each block; and how many of them compute a token.
    every
        Of how many blocks the last one has experts; the others have one network for all tokens.
    gated
        Whether these networks are SwiGLU's, of three layers; else they are two layers with a ReLU.
    experts_per_op
        How many experts make an operator; operators can be placed on devices of their own. All
        unless given.
    capacity
        How many tokens of a batch an expert takes at most, as a multiple of an even share; others
        pass it by. The first ones of the whole batch count, under any strategy. 0: there is no
        bound.
    vocabulary
        Number of tokens.
    """
    mixture(
        model,
        "moe",
        every=every,
        gated=gated,
        capacity=capacity,
        experts_per_op=experts_per_op,
        steps=steps,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        experts=experts,
        chosen=chosen,
        vocabulary=vocabulary,
    )


def mixture(
    model: Model,
    network: str,
    *,
    every: int,
    gated: bool,
    capacity: float,
    experts_per_op: int | None,
    ffn: int,
    experts: int,
    chosen: int,
    **sizes: int,
) -> None:
    """Add the layers of a network called `network` in messages; its sizes are those of `moe`."""
    experts_per_op = experts if experts_per_op is None else experts_per_op
    positive(
        network,
        ffn=ffn,
        experts=experts,
        chosen=chosen,
        every=every,
        experts_per_op=experts_per_op,
    )
    if chosen > experts or not 0 <= capacity < math.inf:
        raise UserError(
            f"{network}: chosen has to be at most experts, {experts}, and capacity from 0 on, but "
            f"they are {chosen} and {capacity}"
        )
    groups = [min(experts_per_op, experts - i) for i in range(0, experts, experts_per_op)]

    def feed_forward(x: Tensor, layer: int) -> list[Tensor]:
        name = f"block{layer}"
        if layer % every != 0:
            return [_network(model, x, ffn, gated, name)]
        gates = _gates(model, x, experts, chosen, capacity, name)
        several = len(groups) > 1
        parts = model.split(gates, groups, name=f"{name}.part") if several else [gates]
        return [
            model.experts(
                x,
                part,
                ffn,
                "silu" if gated else "relu",
                gated,
                chosen * size / experts,
                NORMAL,
                name=f"{name}.experts{i}" if several else f"{name}.experts",
            )
            for i, (part, size) in enumerate(zip(parts, groups, strict=True), 1)
        ]

    decoder(model, network, feed_forward, slowest=SLOWEST, **sizes)


def _network(model: Model, x: Tensor, ffn: int, gated: bool, name: str) -> Tensor:
    """What an expert computes, of all tokens: (n, steps, hidden) -> (n, steps, hidden)."""
    if gated:
        return gated_network(model, x, ffn, name)
    y = model.dense(x, ffn, "relu", False, NORMAL, name=f"{name}.up")
    return project(model, y, x.shape[-1], f"{name}.down")


def _gates(
    model: Model, x: Tensor, experts: int, chosen: int, capacity: float, name: str
) -> Tensor:
    """How much of each expert's result a token gets, (n, steps, experts); mostly 0."""
    scores = project(model, x, experts, f"{name}.router")
    shares = model.top_k(model.softmax(scores, name=f"{name}.shares"), chosen, f"{name}.chosen")
    total = model.reduce(shares, "sum", -1, keepdims=True, name=f"{name}.total")
    gates = model.divide(shares, total, name=f"{name}.gates")
    if capacity == 0:
        return gates
    tokens = math.prod(x.shape[:-1])
    most = max(1, math.ceil(capacity * tokens * chosen / experts))
    return model.capacity(gates, most, name=f"{name}.capacity")
