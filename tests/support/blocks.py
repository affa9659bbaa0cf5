"""Small language models of Llama's and T5's kind, by the layer API; test_blocks.py trains them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from networks import Network

from flexlegion import SGD, Model
from flexlegion.graph.tensor import Tensor

STEPS, WIDTH, HEADS, CHANNELS, GROUPS = 7, 12, 4, 6, 2
VOCABULARY, LABELS = 13, 5
BUCKETS = 5  # of the distances between two positions

Array = npt.NDArray[np.float32]


def angles() -> tuple[Array, Array]:
    """Cosines and sines, (steps, channels); channels i and CHANNELS / 2 + i are a pair."""
    rates = 100.0 ** (-np.arange(0, CHANNELS, 2) / CHANNELS)
    angle = np.tile(np.arange(STEPS)[:, None] * rates, 2)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def buckets() -> npt.NDArray[np.int32]:
    """A number for each distance between a query and a key, (steps, steps)."""
    positions = np.arange(STEPS)
    return np.clip(positions - positions[:, None] + 2, 0, BUCKETS - 1).astype(np.int32)


def _projected(m: Model, x: Tensor, heads: int, name: str) -> Tensor:
    y = m.dense(x, heads * CHANNELS, use_bias=False, name=name)
    return m.reshape(y, (STEPS, heads, CHANNELS))


def _output(m: Model, x: Tensor, name: str) -> Tensor:
    y = m.reshape(x, (STEPS, HEADS * CHANNELS))
    return m.dense(y, WIDTH, use_bias=False, name=name)


def llama(m: Model) -> None:
    """Grouped queries, rotary embedding, RMS normalisation, a gate."""
    tokens = m.input((STEPS,), "int32", name="tokens")
    x = m.embedding(tokens, VOCABULARY, WIDTH, name="embed")
    cos, sin = (m.constant(array) for array in angles())
    y = m.rms_norm(x, name="norm1")
    q = m.rotary(_projected(m, y, HEADS, "q"), cos, sin)
    k = m.rotary(_projected(m, y, GROUPS, "k"), cos, sin)
    y = m.attention(q, k, _projected(m, y, GROUPS, "v"), causal=True)
    x = m.add([x, _output(m, y, "o")])
    y = m.rms_norm(x, name="norm2")
    gate = m.dense(y, 20, "silu", use_bias=False, name="gate")
    y = m.multiply([gate, m.dense(y, 20, use_bias=False, name="up")])
    x = m.add([x, m.dense(y, WIDTH, use_bias=False, name="down")])
    m.softmax(m.dense(m.rms_norm(x, name="norm3"), LABELS, use_bias=False, name="logits"))


def t5(m: Model) -> None:
    """A bias of the distance, trained and used by two layers; tokens 0 are not attended to."""
    tokens = m.input((STEPS,), "int32", name="tokens")
    x = m.embedding(tokens, VOCABULARY, WIDTH, name="embed")
    distances = m.constant(buckets().reshape(-1))
    bias = m.embedding(distances, BUCKETS, HEADS, name="distance")
    bias = m.transpose(m.reshape(bias, (STEPS, STEPS, HEADS)), (0, 3, 1, 2))
    mask = m.elementwise("where(x0 > 0, 0, -1e30)", [tokens])
    bias = m.add([bias, m.reshape(mask, (1, 1, STEPS))])
    for i, causal in enumerate((False, True)):
        y = m.rms_norm(x, name=f"norm{i}a")
        q, k, v = (_projected(m, y, HEADS, f"{part}{i}") for part in "qkv")
        y = m.attention(q, k, v, bias=bias, causal=causal, scale=1.0)
        x = m.add([x, _output(m, y, f"o{i}")])
        y = m.dense(m.rms_norm(x, name=f"norm{i}b"), 20, "relu", use_bias=False, name=f"wide{i}")
        x = m.add([x, m.dense(y, WIDTH, use_bias=False, name=f"narrow{i}")])
    m.softmax(m.dense(m.rms_norm(x, name="norm"), LABELS, use_bias=False, name="logits"))


BLOCKS = {
    build.__name__: Network(
        build,
        (STEPS,),
        "sparse_categorical_crossentropy",
        (STEPS,),
        SGD(0.5),
        vocabulary=VOCABULARY,
    )
    for build in (llama, t5)
}
