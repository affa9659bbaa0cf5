"""Data parallelism, but for a softmax's classes: large vocabularies, and faces by the million.

A layer before a softmax's loss computes some of the classes on each device, and the loss sums over
them, so that neither its weights nor their gradients move (as in InsightFace; OneFlow,
section 6.3.1). An embedding that shares these weights has the same rows of them on each device.
"""

from __future__ import annotations

from flexlegion.base.errors import DoesNotApply
from flexlegion.graph.graph import Graph
from flexlegion.known_strategies.registry import own_strategy
from flexlegion.machine.devices import Devices
from flexlegion.strategy.pairs import Pair, find_pairs, trained, with_sums
from flexlegion.strategy.splitting import all_by_samples, split, table_rows
from flexlegion.strategy.strategy import Strategy


@own_strategy("vocabulary")
def vocabulary(graph: Graph, devices: Devices) -> Strategy:
    """Classes split over all devices, from the layer that computes them to the loss; else samples.

    Raises
    ------
    UserError
        If no loss reads such a layer, or it has fewer classes than there are devices.
    """
    names = devices.preferred
    pairs = [pair for pair in find_pairs(graph, len(names)) if _ends_in_loss(pair, graph)]
    if not pairs:
        raise DoesNotApply(
            "strategy 'vocabulary' splits a layer whose units are the classes of a softmax's loss, "
            f"but this model has no such layer with {len(names)} units"
        )
    dims = {op: dim for pair in pairs for op, dim in pair.dims.items()}
    shared = {weight for op in dims for weight in op.trained_weights}
    for op in graph.operators:
        rows = table_rows(op)
        if rows is not None and shared.intersection(op.weights):
            dims[op] = rows
    configs = all_by_samples(graph, names)
    configs |= {op.name: split(op, dim, names) for op, dim in dims.items()}
    return Strategy(with_sums(configs, graph), "strategy 'vocabulary'")


def _ends_in_loss(pair: Pair, graph: Graph) -> bool:
    """Whether losses alone read its sums, which have no weights."""
    sums = set(pair.rows)
    readers = [op for op in trained(graph) if sums.intersection(t.producer for t in op.inputs)]
    sums_only = not any(op.weights for op in sums)
    return sums_only and all(op.kind.is_loss or op in sums for op in readers)
