"""Whose weights are sharded beyond the optimizer's states: stages 2 and 3 of ZeRO.

A weight that several devices use whole, as in data parallelism, has its gradient summed and its
value changed shard by shard, a shard on each of them. Stage 1, which is always there, keeps the
optimizer's states so. Stage 2 keeps the gradients so, stage 3 the values, too (Rajbhandari et al.,
2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"; PyTorch calls the last
one fully sharded data parallelism).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from flexlegion.graph.graph import Graph, Operator
from flexlegion.strategy.configuration import ParallelConfig, Sharding


def sharded(
    configs: Mapping[str, ParallelConfig], graph: Graph, what: Sharding
) -> dict[str, ParallelConfig]:
    """The same configurations, with gradients, or weights as well, sharded wherever devices share.

    Parameters
    ----------
    configs
        By operator name.
    graph
        What they are for.
    what
        "gradients", or "weights".
    """
    operators = {op.name: op for op in graph.operators}
    return {
        name: replace(config, sharding=what) if shares(operators[name], config) else config
        for name, config in configs.items()
    }


def shares(operator: Operator, config: ParallelConfig) -> bool:
    """Whether several devices use the same part of a weight that the operator trains.

    Parameters
    ----------
    operator
        Whose weights.
    config
        How it is split.
    """
    degrees = config.filled(operator, "strategy").degrees
    used = len(set(config.devices))
    for _, tensor, access in operator.operands:
        if tensor.kind != "weight" or not tensor.requires_gradient or tensor.table:
            continue
        split = {dim.out_dim for dim in access.map if dim.out_dim >= 0}
        if used > prod(degrees[dim] for dim in split):
            return True
    return False
