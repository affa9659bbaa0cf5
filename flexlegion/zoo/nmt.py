"""Neural machine translation (FlexFlow, section 8.1 and Figure 14; Wu et al. 2016, GNMT).

The sizes are FlexFlow's: encoder and decoder of two LSTM layers each, hidden size 1024, 40 steps,
attention on top of the last decoder layer. 32,000 tokens are the largest vocabulary of word pieces
that Wu et al. use for English-German (section 4.1: 8,000 to 32,000); each language has a table of
its own here.
"""

from __future__ import annotations

from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model
from flexlegion.zoo.unrolled import State, classify, embed, join, lstm, positive


def nmt(
    model: Model,
    *,
    steps: int = 40,
    layers: int = 2,
    hidden: int = 1024,
    embedding: int = 1024,
    vocabulary: int = 32_000,
    steps_per_op: int = 1,
) -> None:
    """Add the layers; inputs are tokens (steps): the source, and the target shifted by one.

    The decoder starts from the encoder's last states. The attention is Luong's (score "general"),
    of width `hidden`; it does not feed back into the next step, as in Figure 14. The output is a
    distribution over the vocabulary for each step, (steps, vocabulary).

    Parameters
    ----------
    model
        Where to.
    steps
        Length of source and target.
    layers
        Recurrent layers of the encoder, and of the decoder.
    hidden, embedding
        Units of a recurrent layer; width of the embeddings.
    vocabulary
        Tokens of each language.
    steps_per_op
        Steps that make one operator.
    """
    positive(
        "nmt",
        steps=steps,
        layers=layers,
        hidden=hidden,
        embedding=embedding,
        vocabulary=vocabulary,
        steps_per_op=steps_per_op,
    )
    source = model.input((steps,), "int32", name="source")
    target = model.input((steps,), "int32", name="target")
    states: list[State] = []
    x = embed(model, source, vocabulary, embedding, steps_per_op, "encoder.embed")
    for layer in range(1, layers + 1):
        x, state = lstm(model, x, hidden, f"encoder.lstm{layer}")
        states.append(state)
    memory = join(model, x, "encoder.states")
    x = embed(model, target, vocabulary, embedding, steps_per_op, "decoder.embed")
    for layer, state in enumerate(states, 1):
        x, _ = lstm(model, x, hidden, f"decoder.lstm{layer}", state)
    attended: list[Tensor] = []
    for i, piece in enumerate(x):
        share = attended[0] if attended else None
        name = f"attention.{i * steps_per_op}"
        attended.append(model.luong_attention(piece, memory, hidden, name=name, share=share))
    classify(model, attended, vocabulary, "project")
