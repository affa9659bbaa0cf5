"""Everything on one device: what the others are compared with."""

from flexlegion.graph.graph import Graph
from flexlegion.machine.devices import Devices
from flexlegion.strategy.builtin.registry import own_strategy
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.strategy import Strategy


@own_strategy("single")
def single(graph: Graph, devices: Devices) -> Strategy:
    """One task an operator, all on the first device."""
    device = devices.preferred[0]
    return Strategy(
        {op.name: ParallelConfig((1,) * len(op.dims), (device,)) for op in graph.operators},
        "strategy 'single'",
    )
