"""Model parallelism: whole operators, dealt round-robin to the devices."""

from flexlegion.graph.graph import Graph
from flexlegion.graph.tensor import Tensor
from flexlegion.machine.devices import Devices
from flexlegion.strategy.builtin.registry import own_strategy
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.strategy import Strategy


@own_strategy("model")
def model_parallel(graph: Graph, devices: Devices) -> Strategy:
    """One task an operator; the i-th operator on the i-th device, over and over.

    All look-ups of a table are where the first of them is.
    """
    names = devices.preferred
    tables: dict[Tensor, str] = {}
    configs = {}
    for i, op in enumerate(graph.operators):
        device = names[i % len(names)]
        if op.looks_up:
            device = tables.setdefault(op.weights[0], device)
        configs[op.name] = ParallelConfig((1,) * len(op.dims), (device,))
    return Strategy(configs, "strategy 'model'")
