"""Recurrent networks, unrolled (FlexFlow, section 8.1): an operator for a layer's every step.

The operators of a layer share their weights. Several steps can make one operator, which then splits
by samples alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model

State = tuple[Tensor, Tensor]


def positive(network: str, **sizes: int) -> None:
    """Raise `UserError` unless all sizes are positive whole numbers."""
    for name, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(
                f"{network}: {name} has to be a whole number of at least 1, not {value}"
            )


def embed(
    model: Model, tokens: Tensor, vocabulary: int, units: int, steps_per_op: int, name: str
) -> list[Tensor]:
    """An embedding of sequences (n, T), in pieces of at most `steps_per_op` steps."""
    length = tokens.shape[1]
    pieces: list[Tensor] = []
    for start in range(0, length, steps_per_op):
        steps = min(steps_per_op, length - start)
        share = pieces[0] if pieces else None
        pieces.append(
            model.embedding(
                tokens, vocabulary, units, start, steps, name=f"{name}.{start}", share=share
            )
        )
    return pieces


def lstm(
    model: Model, pieces: Sequence[Tensor], hidden: int, name: str, state: State | None = None
) -> tuple[list[Tensor], State]:
    """A recurrent layer over the pieces of a sequence: its outputs, and its last state."""
    outputs: list[Tensor] = []
    start = 0
    for piece in pieces:
        share = outputs[0] if outputs else None
        result = model.lstm(piece, hidden, state, name=f"{name}.{start}", share=share)
        outputs.append(result.y)
        state = result.state
        start += piece.shape[1]
    if state is None:
        raise ValueError("a sequence has at least one piece")
    return outputs, state


def classify(model: Model, pieces: Sequence[Tensor], classes: int, name: str) -> None:
    """A dense layer for each piece, then one softmax over all steps."""
    logits: list[Tensor] = []
    start = 0
    for piece in pieces:
        share = logits[0] if logits else None
        logits.append(model.dense(piece, classes, name=f"{name}.{start}", share=share))
        start += piece.shape[1]
    model.softmax(join(model, logits, "logits"), name="softmax")


def join(model: Model, pieces: Sequence[Tensor], name: str) -> Tensor:
    """The pieces as one sequence."""
    return model.concat(pieces, axis=1, name=name) if len(pieces) > 1 else pieces[0]
