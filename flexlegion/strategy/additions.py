"""What may be added to any strategy by a name: ``data+again``, ``megatron+zero3``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from flexlegion.graph.graph import Graph
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.recomputation import recomputing, selective
from flexlegion.strategy.sharding import sharded

Configs = Mapping[str, ParallelConfig]

# How each changes a strategy of a graph.
ADDITIONS: Mapping[str, Callable[[Configs, Graph], Configs]] = {
    "again": recomputing,
    "selective": selective,
    "zero2": partial(sharded, what="gradients"),
    "zero3": partial(sharded, what="weights"),
}


def with_additions(configs: Configs, names: Iterable[str], graph: Graph) -> Configs:
    """The configurations, changed by one addition after the other.

    Parameters
    ----------
    configs
        By operator name.
    names
        Of `ADDITIONS`.
    graph
        What they are for.
    """
    for name in names:
        configs = ADDITIONS[name](configs, graph)
    return configs
