"""Data parallelism: every operator split by samples over all devices, tables by columns."""

from flexlegion.graph.graph import Graph
from flexlegion.machine.devices import Devices
from flexlegion.strategy.builtin.registry import own_strategy
from flexlegion.strategy.builtin.splitting import all_by_samples
from flexlegion.strategy.strategy import Strategy


@own_strategy("data")
def data_parallel(graph: Graph, devices: Devices) -> Strategy:
    """One task a device and operator, each with an equal share of the samples.

    What looks rows up in a table has as many of its columns on each device. An operator without
    samples, or of weights alone, is whole: the first on the first device, and so on, over and over.
    A batch smaller than the number of devices leaves the last ones out.
    """
    return Strategy(all_by_samples(graph, devices.preferred), "strategy 'data'")
