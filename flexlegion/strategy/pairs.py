"""Pairs of column and row splits, found from access maps (Megatron-LM, Shoeybi et al. 2019).

A layer that is split by its *columns* computes some of its units on each device. What works on
these units one by one stays with them, whole heads of attention included. A layer that sums over
them can be split by its *rows*: each device multiplies its units with the weights that belong to
them, which gives a partial value of the result. Between columns and rows nothing moves. The logits
and the sums of a softmax's loss over all classes are such a pair, too.

Operators are walked in topological order. A layer with columns begins a pair. An operator that
reads what a pair split goes on with it along the dimension of its space that its access map names:
one that is reduced is the row split, at which the pair ends; any other carries the split on, and
joins the pairs of its inputs. Where there is no such dimension, as in a softmax, the pair is none:
the layers at which it begins are left out, and all is walked again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.graph.tensor import Tensor
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.splitting import followed


@dataclass(eq=False)
class Pair:
    """Operators that are split alike, from layers by columns to what sums over their units.

    Parameters
    ----------
    dims
        Of each operator, the dimension of its space that is split.
    broken
        Whether something reads these units that cannot be split as they are.
    """

    dims: dict[Operator, int] = field(default_factory=dict)
    broken: bool = False

    @property
    def columns(self) -> list[Operator]:
        """Those at which it begins."""
        return [op for op, dim in self.dims.items() if op.dims[dim].kind is DimKind.PARAMETER]

    @property
    def rows(self) -> list[Operator]:
        """Those at which it ends, with partial values."""
        return [op for op, dim in self.dims.items() if op.dims[dim].kind is DimKind.REDUCTION]


def find_pairs(graph: Graph, parts: int) -> list[Pair]:
    """The pairs whose operators can all be cut into so many parts."""
    operators = trained(graph)
    refused: set[Operator] = set()
    while True:
        found = _walk(operators, parts, refused)
        none = [pair for pair in found if pair.broken or not pair.rows]
        if not none:
            return found
        refused.update(op for pair in none for op in pair.columns)


def trained(graph: Graph) -> list[Operator]:
    """The operators that losses depend on, these included; all of a graph without a loss."""
    wanted = {op for op in graph.operators if op.kind.is_loss}
    if not wanted:
        return list(graph.operators)
    for op in reversed(graph.operators):
        if op in wanted:
            wanted.update(t.producer for t in op.inputs if t.producer is not None)
    return [op for op in graph.operators if op in wanted]


def _walk(operators: Iterable[Operator], parts: int, refused: set[Operator]) -> list[Pair]:
    """Pairs, broken ones included."""
    pair_of: dict[Operator, Pair] = {}
    for op in operators:
        sources, dims = [], set()
        for tensor, access in zip(op.inputs, op.kind.input_access(op.input_shapes), strict=True):
            pair = pair_of.get(tensor.producer) if tensor.producer is not None else None
            if pair is not None and (axis := _split_axis(tensor, pair)) is not None:
                sources.append(pair)
                dims.add(followed(op, access.map[axis], tensor.shape[axis]))
        if sources:
            dim = dims.pop() if len(dims) == 1 else None
        else:
            dim = None if op in refused else _column(op)
        if dim is not None and op.space[dim] >= parts:
            pair = pair_of[op] = _joined(sources, pair_of)
            pair.dims[op] = dim
        else:
            for pair in sources:
                pair.broken = True
    return list(dict.fromkeys(pair_of.values()))


def _joined(pairs: list[Pair], pair_of: dict[Operator, Pair]) -> Pair:
    """One pair of several, or a new one."""
    first, *others = dict.fromkeys(pairs) or [Pair()]
    for other in others:
        first.dims |= other.dims
        first.broken |= other.broken
        pair_of.update(dict.fromkeys(other.dims, first))
    return first


def _column(op: Operator) -> int | None:
    """The dimension of a matrix product along which its weights are split by columns."""
    if op.kind.family != "matmul":
        return None
    for weight, access in zip(op.weights, op.kind.weight_access(op.input_shapes), strict=True):
        for axis in access.map:
            its = weight.requires_gradient and axis.out_dim >= 0
            if its and op.dims[axis.out_dim].kind is DimKind.PARAMETER:
                return axis.out_dim
    return None


def _split_axis(tensor: Tensor, pair: Pair) -> int | None:
    """The dimension of an operator's output that a pair splits; None: that is a partial value."""
    op = tensor.producer
    assert op is not None
    access = op.kind.output_access(op.input_shapes)[op.outputs.index(tensor)]
    dim = pair.dims[op]
    return next((axis for axis, m in enumerate(access.map) if m.out_dim == dim), None)


def with_sums(configs: Mapping[str, ParallelConfig], graph: Graph) -> dict[str, ParallelConfig]:
    """The configurations, with their sums where they are cheapest.

    Readers combine partial values where each task of theirs reads a part of its own; where several
    read the same, each would combine it, so that sums by shards come first.
    """
    readers: dict[Tensor, list[Operator]] = defaultdict(list)
    for op in trained(graph):
        for tensor in dict.fromkeys(op.inputs):
            readers[tensor].append(op)
    chosen = dict(configs)
    for op in graph.operators:
        config = chosen[op.name]
        if prod(config.degrees[len(op.output.shape) :]) == 1:
            continue
        again = any(
            _reads_again(reader, tensor, configs[reader.name])
            for tensor in op.outputs
            for reader in readers[tensor]
        )
        chosen[op.name] = replace(config, sums="shards" if again else "readers")
    return chosen


def _reads_again(op: Operator, tensor: Tensor, config: ParallelConfig) -> bool:
    """Whether several tasks of an operator read the same part of a tensor."""
    access = op.kind.input_access(op.input_shapes)[op.inputs.index(tensor)]
    mapped = {axis.out_dim for axis in access.map if axis.out_dim >= 0 and not axis.prefix}
    return prod(config.degrees[dim] for dim in mapped) < config.tasks
