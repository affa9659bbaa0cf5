"""Which operators sum their weights' gradients inside nodes first, where nobody has measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from flexlegion.graph.graph import Graph, Operator
from flexlegion.machine.devices import Devices
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.granularity import DEFAULT_GRANULARITY


def trained_bytes(operator: Operator) -> int:
    """Bytes of the gradients of an operator's own weights, without those of tables."""
    trained = [weight for weight in operator.trained_weights if not weight.table]
    return sum(prod(weight.shape) * weight.gradient_bytes for weight in trained)


def hierarchical(
    configs: Mapping[str, ParallelConfig], graph: Graph, devices: Devices
) -> dict[str, ParallelConfig]:
    """The configurations, with weights' gradients summed inside nodes first where that pays.

    Of R replicas on N nodes, each node then exchanges N - 1 times a weight with others instead of
    R - N. Below the least size of a shard, messages' latency counts for more, and there are more of
    them one after the other. Where a machine is simulated, a search decides for each operator.

    Parameters
    ----------
    configs
        For each operator's name. Those that say so already do so in any case.
    graph
        Whose.
    devices
        With their nodes.
    """
    least = DEFAULT_GRANULARITY.shard_bytes
    large = {op.name for op in graph.operators if trained_bytes(op) >= least}

    def saves(config: ParallelConfig) -> bool:
        """Whether its devices are in several nodes, of which some have several."""
        used = set(config.devices)
        return 1 < len({devices.nodes[devices.number(name)] for name in used}) < len(used)

    return {
        name: replace(config, hierarchical=True) if name in large and saves(config) else config
        for name, config in configs.items()
    }
