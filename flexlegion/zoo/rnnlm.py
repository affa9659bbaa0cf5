"""Language model of two LSTM layers (FlexFlow, section 8.1; Zaremba, Sutskever, Vinyals 2014).

Hidden size 2048 and 40 steps are FlexFlow's; 10,000 words is the vocabulary of the Penn Treebank
data (Zaremba et al., section 4.1). Embeddings are as wide as the layers, as in the program that
Zaremba et al. published; without dropout.
"""

from __future__ import annotations

from flexlegion.model.model import Model
from flexlegion.zoo.unrolled import classify, embed, lstm, positive


def rnnlm(
    model: Model,
    *,
    steps: int = 40,
    layers: int = 2,
    hidden: int = 2048,
    embedding: int | None = None,
    vocabulary: int = 10_000,
    steps_per_op: int = 1,
) -> None:
    """Add the layers; the input is tokens (steps), the output a distribution for each step.

    Parameters
    ----------
    model
        Where to.
    steps
        Length of a sequence.
    layers, hidden
        Recurrent layers, and their units.
    embedding
        Width of the embedding; `hidden` unless given.
    vocabulary
        Number of words.
    steps_per_op
        Steps that make one operator.
    """
    embedding = hidden if embedding is None else embedding
    positive(
        "rnnlm",
        steps=steps,
        layers=layers,
        hidden=hidden,
        embedding=embedding,
        vocabulary=vocabulary,
        steps_per_op=steps_per_op,
    )
    tokens = model.input((steps,), "int32", name="tokens")
    x = embed(model, tokens, vocabulary, embedding, steps_per_op, "embed")
    for layer in range(1, layers + 1):
        x, _ = lstm(model, x, hidden, f"lstm{layer}")
    classify(model, x, vocabulary, "project")
