"""A language model with a mixture of experts in every block, as Mixtral (Jiang et al. 2024).

Pre-normalised blocks of attention with rotary positions, whose queries share keys in groups, and of
experts: gated networks, of which a router chooses some for each token. The chosen ones' gates are a
softmax over their scores. No token is dropped, unless a capacity is asked for. There is no loss
that balances the experts' loads.
"""

from __future__ import annotations

import math

import numpy as np

from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model
from flexlegion.zoo.blocks import NORMAL, check_heads
from flexlegion.zoo.unrolled import positive

EPSILON = 1e-5
SLOWEST = 1e6  # of the angles' rates, the last pair's is about one over this


def moe(
    model: Model,
    *,
    steps: int = 1024,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    groups: int = 4,
    units: int = 2048,
    experts: int = 8,
    chosen: int = 2,
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
    hidden, heads, groups
        Width of the blocks, a multiple of their number of heads; and groups of heads that share
        keys and values.
    units
        Width of an expert.
    experts, chosen
        Of each block; and how many of them compute a token.
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
    experts_per_op = experts if experts_per_op is None else experts_per_op
    positive(
        "moe",
        steps=steps,
        layers=layers,
        hidden=hidden,
        heads=heads,
        groups=groups,
        units=units,
        experts=experts,
        chosen=chosen,
        experts_per_op=experts_per_op,
        vocabulary=vocabulary,
    )
    check_heads("moe", hidden, heads)
    if heads % groups != 0 or hidden // heads % 2 != 0:
        raise UserError(
            f"moe: {heads} heads have to make {groups} groups of equal size, and a head has to "
            f"have pairs of channels, but hidden is {hidden}"
        )
    if chosen > experts or not 0 <= capacity < math.inf:
        raise UserError(
            f"moe: chosen has to be at most experts, {experts}, and capacity from 0 on, but they "
            f"are {chosen} and {capacity}"
        )
    tokens = model.input((steps,), "int32", name="tokens")
    x = model.embedding(tokens, vocabulary, hidden, embedding_initializer=NORMAL, name="embed")
    angles = _angles(steps, hidden // heads)
    cos = model.constant(np.cos(angles), name="cos")
    sin = model.constant(np.sin(angles), name="sin")
    for layer in range(1, layers + 1):
        name = f"block{layer}"
        y = model.rms_norm(x, EPSILON, name=f"{name}.norm1")
        y = _attend(model, y, (cos, sin), heads, groups, name)
        x = model.add([x, y], name=f"{name}.add1")
        y = model.rms_norm(x, EPSILON, name=f"{name}.norm2")
        gates = _gates(model, y, experts, chosen, capacity, name)
        sizes = [
            min(experts_per_op, experts - first) for first in range(0, experts, experts_per_op)
        ]
        parts = model.split(gates, sizes, name=f"{name}.part") if len(sizes) > 1 else [gates]
        results = [
            model.experts(
                y,
                part,
                units,
                "silu",
                True,
                chosen * size / experts,
                NORMAL,
                name=f"{name}.experts{i}" if len(sizes) > 1 else f"{name}.experts",
            )
            for i, (part, size) in enumerate(zip(parts, sizes, strict=True), 1)
        ]
        x = model.add([x, *results], name=f"{name}.add2")
    x = model.rms_norm(x, EPSILON, name="norm")
    x = model.dense(x, vocabulary, use_bias=False, kernel_initializer=NORMAL, name="logits")
    model.softmax(x, name="softmax")


def _gates(
    model: Model, x: Tensor, experts: int, chosen: int, capacity: float, name: str
) -> Tensor:
    """How much of each expert's result a token gets, (n, steps, experts); mostly 0."""
    scores = model.dense(
        x, experts, use_bias=False, kernel_initializer=NORMAL, name=f"{name}.router"
    )
    shares = model.top_k(model.softmax(scores, name=f"{name}.shares"), chosen, f"{name}.chosen")
    total = model.reduce(shares, "sum", -1, keepdims=True, name=f"{name}.total")
    gates = model.divide(shares, total, name=f"{name}.gates")
    if capacity == 0:
        return gates
    tokens = math.prod(x.shape[:-1])
    most = max(1, math.ceil(capacity * tokens * chosen / experts))
    return model.capacity(gates, most, name=f"{name}.capacity")


def _attend(
    model: Model, x: Tensor, angles: tuple[Tensor, Tensor], heads: int, groups: int, name: str
) -> Tensor:
    """Causal self-attention with rotary positions: (n, steps, hidden) -> (n, steps, hidden)."""
    steps, hidden = x.shape[1:]
    width = hidden // heads

    def project(part: str, count: int) -> Tensor:
        y = _dense(model, x, count * width, f"{name}.{part}")
        return model.reshape(y, (steps, count, width), name=f"{name}.{part}.heads")

    q = model.rotary(project("query", heads), *angles, name=f"{name}.query.turned")
    k = model.rotary(project("key", groups), *angles, name=f"{name}.key.turned")
    y = model.attention(q, k, project("value", groups), causal=True, name=f"{name}.attention")
    y = model.reshape(y, (steps, hidden), name=f"{name}.joined")
    return _dense(model, y, hidden, f"{name}.output")


def _dense(model: Model, x: Tensor, units: int, name: str) -> Tensor:
    return model.dense(x, units, use_bias=False, kernel_initializer=NORMAL, name=name)


def _angles(steps: int, width: int) -> np.ndarray:
    """Of each position's pairs of channels, (steps, width): channels i and width / 2 + i."""
    rates = SLOWEST ** (-np.arange(0, width, 2) / width)
    return np.tile(np.arange(steps)[:, None] * rates, 2).astype(np.float32)
