"""A decoder-only transformer, of GPT-2's sizes (Radford et al. 2019).

Pre-normalised blocks, trained positions, and an output layer that shares the token embedding's
table: with GPT-2's small sizes 124 million weights. Unlike GPT-2's, the GELU is exact, there is no
dropout, and queries, keys and values have a matrix each.
"""

from __future__ import annotations

from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model
from flexlegion.zoo.blocks import NORMAL, attend, check_heads, dropped, feed_forward
from flexlegion.zoo.unrolled import positive


def _block(
    model: Model, x: Tensor, heads: int, activation: str, dropout: float, name: str
) -> Tensor:
    """Attention and two dense layers, each of what is normalised, and beside a shortcut."""
    y = attend(model, model.layer_norm(x, name=f"{name}.norm1"), heads, True, name, dropout)
    x = model.add([x, dropped(model, y, dropout, f"{name}.dropout1")], name=f"{name}.add1")
    y = feed_forward(model, model.layer_norm(x, name=f"{name}.norm2"), activation, name)
    return model.add([x, dropped(model, y, dropout, f"{name}.dropout2")], name=f"{name}.add2")


def decoder(
    model: Model,
    network: str,
    activation: str,
    *,
    steps: int,
    layers: int,
    hidden: int,
    heads: int,
    vocabulary: int,
    dropout: float = 0.0,
) -> None:
    """Add the layers of a decoder-only transformer, whose sizes are those of `transformer`.

    Parameters
    ----------
    model
        Where to.
    network
        For messages.
    activation
        Between the dense layers of a block.
    dropout
        Share of the embeddings, of attention's weights, and of what each half of a block adds, that
        is dropped in training.
    """
    positive(network, steps=steps, layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary)
    check_heads(network, hidden, heads)
    tokens = model.input((steps,), "int32", name="tokens")
    embedded = model.embedding(
        tokens, vocabulary, hidden, embedding_initializer=NORMAL, name="embed"
    )
    x = model.position_embedding(embedded, NORMAL, name="positions")
    x = dropped(model, x, dropout, "embed.dropout")
    for layer in range(1, layers + 1):
        x = _block(model, x, heads, activation, dropout, f"block{layer}")
    x = model.layer_norm(x, name="norm")
    x = model.dense(x, vocabulary, use_bias=False, name="logits", share=embedded)
    model.softmax(x, name="softmax")


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
    decoder(
        model,
        "transformer",
        "gelu",
        steps=steps,
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary,
    )
