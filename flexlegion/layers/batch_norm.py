"""Batch normalisation as operators of which each can be split: statistics, moments, normalising."""

from __future__ import annotations

import math

from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.tensor import Tensor
from flexlegion.ops.normalization import BatchNormMoments, BatchNormStatistics


def add_moments(
    graph: Graph, x: Tensor, momentum: float, name: str, running: bool = True
) -> Operator:
    """Take mean and variance of a batch, and keep their running averages.

    ``NAME.statistics`` takes those of each sample, so that samples can be split; ``NAME.moments``
    combines them to those of the whole batch.

    Parameters
    ----------
    graph
        Extended by the two operators.
    x
        Shape (n, ..., channel).
    momentum
        The share of each batch in the running averages, 0 to 1.
    name
        Of the batch normalisation.
    running
        Whether there are running averages, by which evaluation normalises.

    Returns
    -------
    Operator
        ``NAME.moments``: its output, (1, 2, channel), is what `BatchNorm` normalises by, and its
        weights are the running mean and variance, if there are any.
    """
    statistics = graph.add(BatchNormStatistics(not running), [x], f"{name}.statistics")
    moments = BatchNormMoments(math.prod(x.shape[1:-1]), momentum, running)
    return graph.apply(moments, [statistics], f"{name}.moments")
