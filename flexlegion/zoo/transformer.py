"""A decoder-only transformer, of GPT-2's sizes (Radford et al. 2019).

Pre-normalised blocks, trained positions, and an output layer that shares the token embedding's
table: with GPT-2's small sizes 124 million weights. Unlike GPT-2's, the GELU is exact, there is no
dropout, and queries, keys and values have a matrix each.
"""

from __future__ import annotations

from flexlegion.errors import UserError
from flexlegion.initializers import Normal
from flexlegion.model import Model
from flexlegion.tensor import Tensor
from flexlegion.zoo.unrolled import positive

NORMAL = Normal(stddev=0.02)


def _block(model: Model, x: Tensor, heads: int, name: str) -> Tensor:
    """Attention and two dense layers, each beside a shortcut."""
    steps, width = x.shape[1:]

    def dense(y: Tensor, units: int, part: str, activation: str | None = None) -> Tensor:
        return model.dense(y, units, activation, kernel_initializer=NORMAL, name=f"{name}.{part}")

    y = model.layer_norm(x, name=f"{name}.norm1")
    q, k, v = (
        model.reshape(
            dense(y, width, part), (steps, heads, width // heads), name=f"{name}.{part}.heads"
        )
        for part in ("query", "key", "value")
    )
    y = model.multi_head_attention(q, k, v, causal=True, name=f"{name}.attention")
    y = dense(model.reshape(y, (steps, width), name=f"{name}.joined"), width, "output")
    x = model.add([x, y], name=f"{name}.add1")
    y = model.layer_norm(x, name=f"{name}.norm2")
    y = dense(dense(y, 4 * width, "expand", "gelu"), width, "contract")
    return model.add([x, y], name=f"{name}.add2")


def transformer(
    model: Model,
    *,
    steps: int = 1024,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    vocabulary: int = 50_257,
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
    hidden, heads
        Width of the blocks; a multiple of their number of heads.
    vocabulary
        Number of tokens.
    """
    positive(
        "transformer", steps=steps, layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary
    )
    if hidden % heads != 0:
        raise UserError(
            f"transformer: hidden has to be a multiple of heads, but {heads} does not divide "
            f"{hidden}"
        )
    tokens = model.input((steps,), "int32", name="tokens")
    embedded = model.embedding(
        tokens, vocabulary, hidden, embedding_initializer=NORMAL, name="embed"
    )
    x = model.position_embedding(embedded, NORMAL, name="positions")
    for layer in range(1, layers + 1):
        x = _block(model, x, heads, f"block{layer}")
    x = model.layer_norm(x, name="norm")
    x = model.dense(x, vocabulary, use_bias=False, name="logits", share=embedded)
    model.softmax(x, name="softmax")
