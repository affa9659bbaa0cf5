"""BERT (Devlin, Chang, Lee, Toutanova 2019), pre-trained as a masked language model.

Post-normalised blocks, whose attention sees the whole sequence; embeddings of tokens, positions and
segments are added up and normalised. The output layer shares the token embedding's table, with a
bias of its own. Sequences are full, so that nothing is padding; there is no dropout unless
it is asked for, and no prediction of the next sentence.
"""

from __future__ import annotations

from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model
from flexlegion.ops.dense import Dense
from flexlegion.ops.shape import Slice
from flexlegion.zoo.blocks import (
    NORMAL,
    attend,
    check_heads,
    chosen_sizes,
    dropped,
    feed_forward,
    presets_of,
)
from flexlegion.zoo.unrolled import positive

SEGMENTS = 2
EPSILON = 1e-12
PRESETS = presets_of("layers hidden heads", {"base": (12, 768, 12), "large": (24, 1024, 16)})


def _block(model: Model, x: Tensor, heads: int, dropout: float, name: str) -> Tensor:
    """Attention and two dense layers, each beside a shortcut, whose sum is normalised."""
    y = dropped(model, attend(model, x, heads, False, name, dropout), dropout, f"{name}.dropout1")
    y = model.add([x, y], name=f"{name}.add1")
    x = model.layer_norm(y, EPSILON, name=f"{name}.norm1")
    y = dropped(model, feed_forward(model, x, "gelu", name), dropout, f"{name}.dropout2")
    y = model.add([x, y], name=f"{name}.add2")
    return model.layer_norm(y, EPSILON, name=f"{name}.norm2")


def bert(
    model: Model,
    *,
    preset: str = "base",
    steps: int = 512,
    layers: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
    vocabulary: int = 30_522,
    predictions: int | None = None,
    dropout: float = 0.0,
) -> None:
    """Add the layers; inputs are tokens and segments, each (steps).

    The output is a distribution over the tokens for each step. Labels of -1, where no token was
    masked, do not count in the loss.

    Parameters
    ----------
    model
        Where to.
    preset
        A published size: base (110 million weights) or large (340 million).
    steps
        Length of a sequence.
    layers
        Blocks; the preset's unless given.
    hidden, heads
        Width of the blocks, a multiple of their number of heads; the preset's unless given.
    vocabulary
        Number of tokens.
    predictions
        How many positions have an output: the first ones, whatever is there. Systems that train
        BERT predict the tokens that were masked alone, 20 of 128; this costs as much. All unless
        given.
    dropout
        Share of the embeddings, of attention's weights, and of what each half of a block adds, that
        is dropped in training; 0.1 of the published ones.
    """
    predictions = steps if predictions is None else predictions
    if not 0 < predictions <= steps:
        raise UserError(f"bert: predictions has to be from 1 to {steps} steps, not {predictions}")
    sizes = chosen_sizes(PRESETS, preset, layers=layers, hidden=hidden, heads=heads)
    positive("bert", steps=steps, vocabulary=vocabulary, **sizes)
    layers, hidden, heads = sizes["layers"], sizes["hidden"], sizes["heads"]
    check_heads("bert", hidden, heads)
    tokens = model.input((steps,), "int32", name="tokens")
    segments = model.input((steps,), "int32", name="segments")
    embedded = model.embedding(
        tokens, vocabulary, hidden, embedding_initializer=NORMAL, name="embed"
    )
    x = model.position_embedding(embedded, NORMAL, name="positions")
    parts = model.embedding(
        segments, SEGMENTS, hidden, embedding_initializer=NORMAL, name="embed.segments"
    )
    x = model.layer_norm(model.add([x, parts], name="embed.add"), EPSILON, name="embed.norm")
    x = dropped(model, x, dropout, "embed.dropout")
    for layer in range(1, layers + 1):
        x = _block(model, x, heads, dropout, f"block{layer}")
    if predictions < steps:
        x = model.graph.add(Slice(1, 0, predictions), [x], "predicted")
    x = model.dense(x, hidden, "gelu", kernel_initializer=NORMAL, name="transform")
    x = model.layer_norm(x, EPSILON, name="transform.norm")
    (table,) = model.graph.operators[0].weights  # of the tokens' embedding
    x = model.graph.add(Dense(vocabulary), [x], "logits", share=[table, None])
    model.softmax(x, name="softmax")
