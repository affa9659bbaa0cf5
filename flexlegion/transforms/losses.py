"""A model's graph with what training minimises: loss operators, and inputs for labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import unknown
from flexlegion.graph.graph import Graph
from flexlegion.graph.initializers import Given
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.layers import Layers
from flexlegion.objective.losses import (
    LABELS_NAME,
    LOSS_NAME,
    LOSSES,
    AnyLoss,
    Loss,
    Losses,
    Weights,
    Written,
    check_outputs,
    class_weights_of,
    losses_of,
    near,
    parts_of_loss,
    weights_of,
)
from flexlegion.objective.named_losses import named_loss
from flexlegion.objective.others_losses import check_written, loss_of_torch
from flexlegion.ops.logits import LogitStatistics, OwnLogit, SmoothedLogitStatistics
from flexlegion.ops.losses import CrossEntropy, MeanLoss


def add_loss(graph: Graph, output: Tensor, loss: AnyLoss) -> Graph:
    """`add_losses` for a model of one output."""
    return add_losses(graph, [output], loss)


def add_losses(
    graph: Graph, outputs: Sequence[Tensor], loss: Losses, loss_weights: Weights = None
) -> Graph:
    """The graph with a loss operator after each output that is trained, and inputs for labels.

    Of a model with one output they are called ``loss`` and ``labels``, of others ``loss.NAME`` and
    ``labels.NAME`` by the output (`output_name`).

    Parameters
    ----------
    graph
        The model's; it stays as it is.
    outputs
        Its outputs.
    loss
        A loss or the name of one, for every output; or one an output as a list, or by the outputs'
        names. An output whose loss is None, or not named, is not trained. In place of a loss, a
        tensor of the graph, (n, ...) or (1, ...), whose mean is minimised, without labels; or a
        function that makes one, see `Written`.
    loss_weights
        What each loss is multiplied with in the sum that training minimises; 1 unless given.

    Raises
    ------
    UserError
        If there is no such loss, or it does not fit its output.
    """
    graph = graph.copy()
    names = check_outputs(graph, outputs)
    if isinstance(loss, Tensor):  # of the model as a whole
        _add_mean(graph, loss, _weight_of(loss_weights), "")
        return graph
    losses = _by_output(loss, names, "loss")
    weights = _by_output(loss_weights, names, "loss weight")
    for name, output in zip(names, outputs, strict=True):
        if losses.get(name) is None:
            continue
        suffix = "" if len(outputs) == 1 else f".{name}"
        _add(graph, output, _loss_of(losses[name]), _weight_of(weights.get(name)), suffix)
    if not losses_of(graph):
        raise UserError("no output has a loss, so there is nothing to train")
    return graph


def _add(graph: Graph, output: Tensor, loss: Loss | Tensor, weight: float, suffix: str) -> None:
    if isinstance(loss, Tensor):
        _add_mean(graph, loss, weight, suffix)
        return
    if isinstance(loss, Written):
        labels = graph.add_input(f"{LABELS_NAME}{suffix}", *loss.labels(output.shape))
        _add_mean(graph, _written(graph, loss, output, labels), weight, suffix)
        return
    kind, source = loss.operator(output)
    name = f"{LOSS_NAME}{suffix}"
    prediction = source.tensor
    for number, move in enumerate(source.moves):
        prediction = graph.add(move, [prediction], f"{name}.{move.type}_{number}")
    own = f"{LABELS_NAME}{suffix}"
    labels = graph.add_input(own, *loss.labels(prediction.shape))
    weights: list[Tensor] = []
    if loss.weighted:
        weights.append(graph.add_input(weights_of(own), loss.weights(prediction.shape), "float32"))
    if (before := loss.before()) is not None:
        prediction = graph.add(before, [prediction, labels], f"{name}.{before.type}")
    read = [prediction]
    if isinstance(kind, CrossEntropy):
        read = _statistics(graph, prediction, labels, kind, name)
    graph.add(kind.weighted(weight), [*read, *weights, labels], name)


def _statistics(
    graph: Graph, logits: Tensor, labels: Tensor, loss: CrossEntropy, name: str
) -> list[Tensor]:
    """What `CrossEntropy` reads before labels and their weights.

    The operators that compute it can be split by classes.
    """
    own_logit, statistics = parts_of_loss(name)
    own = graph.add(OwnLogit(loss.ignored), [logits, labels], own_logit)
    weights: list[Tensor] = []
    if loss.class_weights:
        values = Given(np.asarray([loss.class_weights], np.float32))
        shape = (1, loss.classes)
        weights.append(graph.add_weight(class_weights_of(name), shape, values, trainable=False))
    if loss.smoothing == 0:
        kind = LogitStatistics(loss.ignored)
        return [*graph.apply(kind, [logits, labels, own], statistics).outputs, *weights]
    smoothed = SmoothedLogitStatistics(loss.ignored, loss.mean_weight)
    return [*graph.apply(smoothed, [logits, labels, own, *weights], statistics).outputs, *weights]


def _add_mean(graph: Graph, tensor: Tensor, weight: float, suffix: str) -> None:
    if tensor not in graph or tensor.producer is None:
        raise UserError(f"the loss {tensor!r} is computed by no layer of this model")
    graph.add(MeanLoss(weight=weight), [tensor], f"{LOSS_NAME}{suffix}")


def _written(graph: Graph, loss: Written, output: Tensor, labels: Tensor) -> Tensor:
    layers = Layers(output.shape[0])
    layers.graph = graph
    result = loss.function(layers, output, labels)
    if not isinstance(result, Tensor):
        raise UserError(
            f"a loss has to return a tensor, but {getattr(loss.function, '__name__', 'it')} "
            f"returned {type(result).__name__}"
        )
    return result


def _by_output(given: Any, names: Sequence[str], what: str) -> dict[str, Any]:
    """What was given for all outputs, in a list, or by name: by name."""
    if isinstance(given, Mapping):
        for name in given:
            if name not in names:
                raise UserError(f"{what}: no output '{name}'; {near(name, names)}")
        return dict(given)
    if isinstance(given, list | tuple):
        if len(given) != len(names):
            raise UserError(
                f"{what}: a list of {len(given)} was given, but the model has {len(names)} "
                f"output{'s' * (len(names) > 1)}: {', '.join(names)}"
            )
        return dict(zip(names, given, strict=True))
    return dict.fromkeys(names, given)


def _loss_of(loss: Any) -> Loss | Tensor:
    if isinstance(loss, Loss | Tensor):
        return loss
    if (known := loss_of_torch(loss)) is not None:
        return known
    if callable(loss) and not isinstance(loss, type):
        check_written(loss)
        return Written(loss)
    if not isinstance(loss, str):
        raise unknown("loss", loss, LOSSES)
    return named_loss(loss)


def _weight_of(weight: Any) -> float:
    if weight is None:
        return 1.0
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise UserError(f"a loss weight has to be a finite number, but is {weight!r}")
    return float(weight)
