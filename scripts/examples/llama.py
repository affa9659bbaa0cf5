"""A language model of Llama's kind, in layers: large for 32 GPUs, small for four processes."""

from __future__ import annotations

import numpy as np

import flexlegion as fl
from flexlegion.graph.tensor import Tensor


def model(
    batch_size: int = 64,
    layers: int = 16,
    hidden: int = 2048,
    heads: int = 16,
    steps: int = 2048,
    vocabulary: int = 32_000,
) -> fl.Model:
    """Tokens in, the distribution of the next one out, for each position."""
    net = fl.Model(batch_size)
    width = hidden // heads
    rates = 10_000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.tile(np.arange(steps)[:, None] * rates, 2)
    cos, sin = net.constant(np.cos(angles), "cos"), net.constant(np.sin(angles), "sin")

    def project(x: Tensor, units: int, name: str) -> Tensor:
        return net.dense(x, units, use_bias=False, name=name)

    x = net.embedding(net.input((steps,), "int32", name="tokens"), vocabulary, hidden, name="embed")
    for layer in range(layers):
        name = f"block{layer}"
        y = net.rms_norm(x, name=f"{name}.norm1")
        q, k, v = (
            net.reshape(project(y, hidden, f"{name}.{part}"), (steps, heads, width))
            for part in ("query", "key", "value")
        )
        y = net.attention(net.rotary(q, cos, sin), net.rotary(k, cos, sin), v, causal=True)
        x = net.add([x, project(net.reshape(y, (steps, hidden)), hidden, f"{name}.output")])
        y = net.rms_norm(x, name=f"{name}.norm2")
        gate, up = (project(y, 3 * hidden, f"{name}.{part}") for part in ("gate", "up"))
        y = net.elementwise("silu(x0) * x1", [gate, up], name=f"{name}.gated")
        x = net.add([x, project(y, hidden, f"{name}.down")])
    net.softmax(project(net.rms_norm(x, name="norm"), vocabulary, "logits"), name="next")
    net.loss = "sparse_categorical_crossentropy"
    return net


def small(batch_size: int = 8) -> fl.Model:
    """The same, so small that four processes of one CPU train it in seconds."""
    return model(batch_size, layers=4, hidden=128, heads=4, steps=16, vocabulary=64)
