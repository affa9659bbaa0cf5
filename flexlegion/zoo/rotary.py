"""Decoders with rotary positions (Su et al. 2021), as Llama and Mixtral, whose blocks differ.

Pre-normalised blocks of attention, whose queries share keys and values in groups (Ainslie et al.
2023), and of something else; RMS normalisation, no biases, and an output layer of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model
from flexlegion.zoo.blocks import NORMAL, check_heads
from flexlegion.zoo.unrolled import positive

EPSILON = 1e-5

FeedForward = Callable[[Tensor, int], list[Tensor]]


def decoder(
    model: Model,
    network: str,
    feed_forward: FeedForward,
    *,
    steps: int,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    slowest: float,
) -> None:
    """Add the layers; the input is tokens (steps), the output a distribution for each step.

    Parameters
    ----------
    model
        Where to.
    network
        For messages.
    feed_forward
        Adds what follows attention in a block of this number, from 1 on: of what is normalised
        (n, steps, hidden), one or more tensors of that shape, which are added up.
    steps
        Length of a sequence.
    layers
        Blocks.
    hidden, heads, kv_heads
        Width of the blocks, their heads, and heads of keys and values.
    vocabulary
        Number of tokens.
    slowest
        Of the angles' rates, the last pair's is about one over this.
    """
    positive(
        network,
        steps=steps,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        vocabulary=vocabulary,
    )
    check_heads(network, hidden, heads)
    if heads % kv_heads != 0 or hidden // heads % 2 != 0:
        raise UserError(
            f"{network}: {heads} heads have to share {kv_heads} kv_heads evenly, and a head has to "
            f"have pairs of channels, but hidden is {hidden}"
        )
    tokens = model.input((steps,), "int32", name="tokens")
    x = model.embedding(tokens, vocabulary, hidden, embedding_initializer=NORMAL, name="embed")
    angles = _angles(steps, hidden // heads, slowest)
    cos = model.constant(np.cos(angles), name="cos")
    sin = model.constant(np.sin(angles), name="sin")
    for layer in range(1, layers + 1):
        name = f"block{layer}"
        y = model.rms_norm(x, EPSILON, name=f"{name}.norm1")
        y = _attend(model, y, (cos, sin), heads, kv_heads, name)
        x = model.add([x, y], name=f"{name}.add1")
        y = model.rms_norm(x, EPSILON, name=f"{name}.norm2")
        x = model.add([x, *feed_forward(y, layer)], name=f"{name}.add2")
    x = model.rms_norm(x, EPSILON, name="norm")
    x = project(model, x, vocabulary, "logits")
    model.softmax(x, name="softmax")


def gated_network(model: Model, x: Tensor, ffn: int, name: str) -> Tensor:
    """A network with a gate, SwiGLU (Shazeer 2020): (n, steps, hidden) -> (n, steps, hidden)."""
    parts = [project(model, x, ffn, f"{name}.{part}") for part in ("gate", "up")]
    y = model.elementwise("silu(x0) * x1", parts, name=f"{name}.gated")
    return project(model, y, x.shape[-1], f"{name}.down")


def project(model: Model, x: Tensor, units: int, name: str) -> Tensor:
    """A dense layer without a bias."""
    return model.dense(x, units, use_bias=False, kernel_initializer=NORMAL, name=name)


def _attend(
    model: Model, x: Tensor, angles: tuple[Tensor, Tensor], heads: int, kv_heads: int, name: str
) -> Tensor:
    """Causal self-attention with rotary positions: (n, steps, hidden) -> (n, steps, hidden)."""
    steps, hidden = x.shape[1:]
    width = hidden // heads

    def heads_of(part: str, count: int) -> Tensor:
        y = project(model, x, count * width, f"{name}.{part}")
        return model.reshape(y, (steps, count, width), name=f"{name}.{part}.heads")

    q = model.rotary(heads_of("query", heads), *angles, name=f"{name}.query.turned")
    k = model.rotary(heads_of("key", kv_heads), *angles, name=f"{name}.key.turned")
    y = model.attention(q, k, heads_of("value", kv_heads), causal=True, name=f"{name}.attention")
    return project(
        model, model.reshape(y, (steps, hidden), name=f"{name}.joined"), hidden, f"{name}.output"
    )


def _angles(steps: int, width: int, slowest: float) -> np.ndarray:
    """Of each position's pairs of channels, (steps, width): channels i and width / 2 + i."""
    rates = slowest ** (-np.arange(0, width, 2) / width)
    return np.tile(np.arange(steps)[:, None] * rates, 2).astype(np.float32)
