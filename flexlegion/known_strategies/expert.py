"""What an expert chooses without a search, by the kind of network (FlexFlow, section 8.2.1)."""

from __future__ import annotations

from collections.abc import Mapping

from flexlegion.graph.graph import Graph
from flexlegion.known_strategies.gnmt import gnmt
from flexlegion.known_strategies.one_weird_trick import one_weird_trick
from flexlegion.known_strategies.registry import own_strategy
from flexlegion.machine.devices import Devices
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.splitting import all_by_samples
from flexlegion.strategy.strategy import Strategy


@own_strategy("expert")
def expert(graph: Graph, devices: Devices) -> Strategy:
    """`one_weird_trick` for networks with convolutions, `gnmt` for those with recurrences.

    A recurrence shows by operators of one type that share their weights, or that hand on a state.
    Of other networks the paper says nothing; what is common for them is data parallelism.
    """
    configs: Mapping[str, ParallelConfig]
    if any(operator.kind.family == "convolution" for operator in graph.operators):
        configs = one_weird_trick(graph, devices)
    elif _recurrent(graph):
        configs = gnmt(graph, devices)
    else:
        configs = all_by_samples(graph, devices.preferred)
    return Strategy(configs, "strategy 'expert'")


def _recurrent(graph: Graph) -> bool:
    # Of one type: a dense layer that reads an embedding's table is no other step of it.
    uses = [(op.kind.type, *op.weights) for op in graph.operators if op.weights]
    states = any(op.weights and len(op.outputs) > 1 for op in graph.operators)
    return states or len(set(uses)) < len(uses)
