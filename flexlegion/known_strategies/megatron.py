"""Megatron-LM's strategy for transformers: tensor parallelism in a node, data parallelism between.

Layers are split in pairs by columns and by rows (Shoeybi et al. 2019), the softmax's classes and
the rows of embeddings, too; over several nodes, embeddings by their columns. What lies between the
pairs is split by the length of the sequences (Korthikanti et al. 2022), so that nothing is computed
twice: a row-split layer's partial values are summed up where their positions are read, and the next
columns gather all positions.
"""

from __future__ import annotations

from math import prod

from flexlegion.base.errors import DoesNotApply
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.known_strategies.registry import own_strategy
from flexlegion.machine.devices import Devices
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.pairs import find_pairs, with_sums
from flexlegion.strategy.splitting import by_samples, split, table_rows, turns
from flexlegion.strategy.strategy import Strategy


@own_strategy("megatron")
def megatron(graph: Graph, devices: Devices) -> Strategy:
    """Samples split over the nodes; pairs, tables' rows and lengths over the devices of each.

    What has neither is split by samples over all devices, as data parallelism does. A batch smaller
    than the number of nodes uses only as many of them.

    Raises
    ------
    UserError
        If there is no pair, or no node with two devices to split one over.
    """
    nodes = devices.preferred_by_node
    parts = min(map(len, nodes))
    if parts == 1:
        raise DoesNotApply(
            "strategy 'megatron' splits layers over the devices of a node, but there is a node "
            "with one device"
        )
    pairs = find_pairs(graph, parts)
    if not any(op.weights for pair in pairs for op in pair.rows):
        raise DoesNotApply(
            "strategy 'megatron' splits pairs of layers, one by its units and one that sums over "
            f"them, but this model has no such pair with {parts} units"
        )
    batch = max((tensor.shape[0] for tensor in graph.inputs), default=1)
    names = [name for node in nodes[:batch] for name in node[:parts]]
    dims = {op: dim for pair in pairs for op, dim in pair.dims.items()}
    turn = turns(graph)
    configs = {}
    for op in graph.operators:
        dim = dims.get(op)
        if dim is None:
            dim = _between(op, parts)
        if op.looks_up and dim is not None:
            configs[op.name] = split(op, _of_table(op, dim, parts, names), names)
        elif dim is not None:
            configs[op.name] = _in_nodes(op, dim, parts, names)
        else:
            configs[op.name] = by_samples(op, names, turn[op])
    return Strategy(with_sums(configs, graph), "strategy 'megatron'")


def _of_table(op: Operator, rows: int, parts: int, names: list[str]) -> int:
    """A table's rows in one node, and its columns over several, if there are enough of them.

    A device that has some rows computes, for all samples, a value of which most are zeros. Over
    several nodes, these would take many times the memory of the samples that a node is for.
    """
    columns = len(op.output.shape) - 1
    can = op.dims[columns].kind is DimKind.PARAMETER and op.space[columns] >= len(names)
    return columns if can and len(names) > parts else rows


def _between(op: Operator, parts: int) -> int | None:
    """The dimension that is split of an operator in no pair: a table's rows, or the length."""
    rows = table_rows(op)
    if rows is not None and op.space[rows] >= parts:
        return rows
    for d, (dim, extent) in enumerate(zip(op.dims, op.output.shape, strict=False)):
        if dim.name == "length" and dim.kind is not DimKind.NONE and extent >= parts:
            return d
    return None


def _in_nodes(op: Operator, dim: int, parts: int, names: list[str]) -> ParallelConfig:
    """Samples over the nodes, a dimension over the devices of each."""
    degrees = [1] * len(op.space)
    if op.dims[0].kind is DimKind.SAMPLE:
        degrees[0] = min(op.space[0], len(names) // parts)
    degrees[dim] = parts
    return ParallelConfig(tuple(degrees), tuple(names[: prod(degrees)]))
