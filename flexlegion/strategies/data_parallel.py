"""Data parallelism: every operator split by samples over all devices."""

from flexlegion.devices import Devices
from flexlegion.graph import Graph
from flexlegion.soap import ParallelConfig
from flexlegion.strategy import Strategy


def data_parallel(graph: Graph, devices: Devices) -> Strategy:
    """One task a device and operator, each with an equal share of the samples."""
    names = tuple(devices.preferred)
    return Strategy(
        {
            op.name: ParallelConfig((len(names), *(1,) * (len(op.dims) - 1)), names)
            for op in graph.operators
        },
        "strategy 'data'",
    )
