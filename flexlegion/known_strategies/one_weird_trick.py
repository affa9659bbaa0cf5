"""Krizhevsky's "one weird trick" (2014), the experts' strategy for CNNs (FlexFlow, section 8.2.1).

Convolutions have most of the work and few weights, so they are split by samples; the dense layers
behind them have most of the weights and little work, so each device computes some of their units,
and their weights are never exchanged.
"""

from __future__ import annotations

from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.known_strategies.registry import own_strategy
from flexlegion.machine.devices import Devices
from flexlegion.strategy.splitting import all_by_samples, followed, split
from flexlegion.strategy.strategy import Strategy

_FOLLOWERS = ("elementwise", "normalization", "copy")


@own_strategy("one-weird-trick")
def one_weird_trick(graph: Graph, devices: Devices) -> Strategy:
    """Samples split up to the dense layers, these by their units, over all devices.

    A dense layer is a matrix product with a weight, after which no convolution comes. What works
    on its units one by one (activations, dropout, sums) is split as it is; all else is split by
    samples, softmax and loss too; what has none, as a batch's moments, is whole, in turn on the
    devices. An extent smaller than the number of devices is split as far as it goes.
    """
    names = devices.preferred
    dense = _dense_layers(graph)
    split_dims: dict[Operator, int] = {}
    configs = all_by_samples(graph, names)
    for operator in graph.operators:
        dim = _units(operator) if operator in dense else _followed(operator, split_dims)
        if dim is not None:
            split_dims[operator] = dim
            configs[operator.name] = split(operator, dim, names)
    return Strategy(configs, "strategy 'one-weird-trick'")


def _dense_layers(graph: Graph) -> set[Operator]:
    """The matrix products with weights that no convolution depends on."""
    before_convolutions: set[Operator] = set()
    dense = set()
    for operator in reversed(graph.operators):
        if operator.kind.family == "convolution" or operator in before_convolutions:
            before_convolutions |= {t.producer for t in operator.inputs if t.producer is not None}
        elif operator.kind.family == "matmul" and operator.weights:
            dense.add(operator)
    return dense


def _units(operator: Operator) -> int | None:
    """The dimension of a dense layer whose splitting splits its weights most."""
    dims = [d for d, dim in enumerate(operator.dims) if dim.kind is DimKind.PARAMETER]
    return max(dims, key=lambda d: operator.output.shape[d], default=None)


def _followed(operator: Operator, split_dims: dict[Operator, int]) -> int | None:
    """The dimension by which it can be split as a producer is, without any transfer."""
    if operator.kind.family not in _FOLLOWERS:
        return None
    accesses = operator.kind.input_access(operator.input_shapes)
    for tensor, access in zip(operator.inputs, accesses, strict=True):
        producer = tensor.producer
        if producer not in split_dims or tensor is not producer.output:
            continue
        axis = split_dims[producer]
        dim = followed(operator, access.map[axis], tensor.shape[axis])
        if dim is not None and operator.dims[dim].kind is not DimKind.REDUCTION:
            return dim
    return None
