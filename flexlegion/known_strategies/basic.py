"""Everything on one device, data parallelism, and model parallelism."""

from flexlegion.graph.graph import Graph
from flexlegion.known_strategies.registry import own_strategy
from flexlegion.machine.devices import Devices
from flexlegion.strategy.sharding import sharded
from flexlegion.strategy.splitting import all_by_samples
from flexlegion.strategy.strategy import Strategy
from flexlegion.strategy.whole import model_parallel, single

own_strategy("single")(single)


@own_strategy("data")
def data_parallel(graph: Graph, devices: Devices) -> Strategy:
    """Each operator split by samples over all devices, in equal shares.

    What looks rows up in a table has as many of its columns on each device. An operator without
    samples, or of weights alone, is whole: the first on the first device, and so on, over and over.
    A batch smaller than the number of devices leaves the last ones out.
    """
    return Strategy(all_by_samples(graph, devices.preferred), "strategy 'data'")


@own_strategy("fsdp")
def fully_sharded(graph: Graph, devices: Devices) -> Strategy:
    """Data parallelism with sharded weights, gradients and states: ZeRO's stage 3, ``data+zero3``.

    A device keeps its shards alone, and gathers the others' when it needs them.
    """
    configs = sharded(data_parallel(graph, devices), graph, "weights")
    return Strategy(configs, "strategy 'fsdp'")


own_strategy("model")(model_parallel)
