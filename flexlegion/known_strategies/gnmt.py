"""The strategy of GNMT (Wu et al. 2016), the experts' one for RNNs (FlexFlow, section 8.2.1).

Data parallelism between nodes: each has the whole operator graph, for its share of the samples.
Model parallelism within a node: operators of the same depth are on the same GPU.
"""

from __future__ import annotations

from flexlegion.graph.graph import Graph, Operator
from flexlegion.known_strategies.registry import own_strategy
from flexlegion.machine.devices import Devices
from flexlegion.strategy.splitting import by_samples, turns
from flexlegion.strategy.strategy import Strategy


@own_strategy("gnmt")
def gnmt(graph: Graph, devices: Devices) -> Strategy:
    """Samples split over the nodes, layers dealt to the devices of each node by their depth.

    With fewer devices in a node than layers, the layers go around: depth modulo devices. Devices
    of which no node is known are one node. A batch smaller than the number of nodes uses only as
    many of them. Operators without samples to split are dealt to the nodes.
    """
    nodes = devices.preferred_by_node
    # As many on each node, so that a layer has the same place on all of them.
    used = min(map(len, nodes))
    turn = turns(graph)
    configs = {}
    for operator, depth in layer_depths(graph).items():
        places = [node[depth % used] for node in nodes]
        configs[operator.name] = by_samples(operator, places, turn[operator])
    return Strategy(configs, "strategy 'gnmt'")


def layer_depths(graph: Graph) -> dict[Operator, int]:
    """How many layers there are before each operator, on the longest path.

    A layer is all operators of a type with the same weights: the unrolled steps of a recurrent
    layer are one. An operator that trains none belongs to the deepest layer that it depends on; to
    the first if to none. Layers count in the order in which they begin: where a later one feeds an
    earlier one, as attention that the decoder's next step reads, the edge leads to another step,
    and adds no depth.
    """
    numbers: dict[tuple[object, ...], int] = {}
    members: dict[Operator, frozenset[int]] = {}  # the layers that its output comes from directly
    before: list[set[int]] = []
    for operator in graph.operators:
        producers = (tensor.producer for tensor in operator.inputs)
        sources = frozenset().union(*(members[p] for p in producers if p is not None))
        if weights := operator.trained_weights:
            layer = numbers.setdefault((operator.kind.type, *weights), len(numbers))
            if layer == len(before):
                before.append(set())
            before[layer] |= {source for source in sources if source < layer}
            sources = frozenset([layer])
        members[operator] = sources
    depths: list[int] = []
    for earlier in before:
        depths.append(max((depths[layer] + 1 for layer in earlier), default=0))
    return {op: max((depths[layer] for layer in of), default=0) for op, of in members.items()}
