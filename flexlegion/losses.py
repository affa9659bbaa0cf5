"""Losses by name: which operator computes them, and what labels they take."""

from __future__ import annotations

from flexlegion.errors import UserError
from flexlegion.graph import Graph
from flexlegion.ops.base import OperatorType
from flexlegion.ops.losses import MeanSquaredError, SoftmaxCrossEntropy
from flexlegion.tensor import Tensor

LOSSES: dict[str, OperatorType] = {
    "sparse_categorical_crossentropy": SoftmaxCrossEntropy("sparse"),
    "categorical_crossentropy": SoftmaxCrossEntropy("one_hot"),
    "mean_squared_error": MeanSquaredError(),
}

LOSS_NAME = "loss"
LABELS_NAME = "labels"


def add_loss(graph: Graph, output: Tensor, loss: str) -> Graph:
    """The graph with a loss operator (and an input for labels) after `output`.

    Cross-entropy of a softmax reads the softmax's input instead: the two together are the
    numerically stable pair, and the gradient does not pass through the softmax. Of any other
    output, cross-entropy takes the values to be logits. Of predictions (n, steps, c), its labels
    have shape (n, steps).

    Raises
    ------
    UserError
        If there is no such loss, or the output does not fit it.
    """
    if loss not in LOSSES:
        raise UserError(f"unknown loss '{loss}'; choose one of {', '.join(LOSSES)}")
    kind = LOSSES[loss]
    graph = graph.copy()
    prediction = output
    if isinstance(kind, SoftmaxCrossEntropy):
        producer = output.producer
        if producer is not None and producer.kind.type == "softmax":
            prediction = producer.inputs[0]
    if isinstance(kind, SoftmaxCrossEntropy) and kind.labels == "sparse":
        labels = graph.add_input(LABELS_NAME, prediction.shape[:-1], "int32")
    else:
        labels = graph.add_input(LABELS_NAME, prediction.shape, "float32")
    graph.add(kind, [prediction, labels], LOSS_NAME)
    return graph
