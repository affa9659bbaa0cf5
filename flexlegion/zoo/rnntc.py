"""Text classification by four LSTM layers (FlexFlow, section 8.1; data as in Kim 2014).

Four layers, hidden size 1024 and 40 steps are FlexFlow's. Kim gives the movie
reviews' two classes and 18,765 words (Table 1), and embeddings of width 300 (section 3.3).
"""

from __future__ import annotations

from flexlegion.model.model import Model
from flexlegion.zoo.unrolled import embed, lstm, positive


def rnntc(
    model: Model,
    *,
    classes: int = 2,
    steps: int = 40,
    layers: int = 4,
    hidden: int = 1024,
    embedding: int = 300,
    vocabulary: int = 18_765,
    steps_per_op: int = 1,
) -> None:
    """Add the layers; the input is tokens (steps), the output one distribution over the classes.

    Parameters
    ----------
    model
        Where to.
    classes
        Width of the output, which follows from the state after the last step.
    steps
        Length of a text.
    layers, hidden
        Recurrent layers, and their units.
    embedding
        Width of the embedding.
    vocabulary
        Number of words.
    steps_per_op
        Steps that make one operator.
    """
    positive(
        "rnntc",
        classes=classes,
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
        x, (last, _) = lstm(model, x, hidden, f"lstm{layer}")
    model.softmax(model.dense(last, classes, name="output"), name="softmax")
