"""Data parallelism: every operator split by samples over all devices, tables by columns."""

from flexlegion.graph import Graph
from flexlegion.machine.devices import Devices
from flexlegion.ops.base import DimKind
from flexlegion.soap import ParallelConfig
from flexlegion.strategies.registry import own_strategy
from flexlegion.strategies.splitting import by_samples, in_one_piece, turns
from flexlegion.strategy import Strategy


@own_strategy("data")
def data_parallel(graph: Graph, devices: Devices) -> Strategy:
    """One task a device and operator, each with an equal share of the samples.

    What looks rows up in a table has as many of its columns on each device. An operator without
    samples, or of weights alone, is whole: the first on the first device, and so on, over and over.
    A batch smaller than the number of devices does not fit.
    """
    names = tuple(devices.preferred)
    configs = {}
    whole = set(in_one_piece(graph))
    for op, turn in turns(graph).items():
        if op.dims[0].kind is DimKind.SAMPLE and op not in whole:
            configs[op.name] = ParallelConfig((len(names), *(1,) * (len(op.dims) - 1)), names)
        else:
            configs[op.name] = by_samples(op, names, turn)
    return Strategy(configs, "strategy 'data'")
