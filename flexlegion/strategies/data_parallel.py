"""Data parallelism: every operator split by samples over all devices."""

from flexlegion.devices import Devices
from flexlegion.graph import Graph
from flexlegion.soap import ParallelConfig
from flexlegion.strategies.placement import by_samples, sample_dim, turns
from flexlegion.strategy import Strategy


def data_parallel(graph: Graph, devices: Devices) -> Strategy:
    """One task a device and operator, each with an equal share of the samples.

    An operator without samples is whole: the first on the first device, and so on, over and over.
    A batch smaller than the number of devices does not fit.
    """
    names = tuple(devices.preferred)
    configs = {}
    for op, turn in turns(graph).items():
        if sample_dim(op) is None:
            configs[op.name] = by_samples(op, names, turn)
        else:
            configs[op.name] = ParallelConfig((len(names), *(1,) * (len(op.dims) - 1)), names)
    return Strategy(configs, "strategy 'data'")
