"""Model parallelism: whole operators, dealt round-robin to the devices."""

from flexlegion.devices import Devices
from flexlegion.graph import Graph
from flexlegion.soap import ParallelConfig
from flexlegion.strategy import Strategy


def model_parallel(graph: Graph, devices: Devices) -> Strategy:
    """One task an operator; the i-th operator on the i-th device, over and over."""
    names = devices.preferred
    return Strategy(
        {
            op.name: ParallelConfig((1,) * len(op.dims), (names[i % len(names)],))
            for i, op in enumerate(graph.operators)
        },
        "strategy 'model'",
    )
