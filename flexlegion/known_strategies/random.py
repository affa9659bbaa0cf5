"""A random point of the SOAP space, for tests and as a start of searches."""

from dataclasses import replace

from flexlegion.graph.graph import Graph
from flexlegion.known_strategies.registry import own_strategy
from flexlegion.machine.devices import Devices
from flexlegion.strategy.configuration import ParallelConfig, random_config, reads_partial_values
from flexlegion.strategy.strategy import Strategy


@own_strategy("random", takes_seed=True)
def random(graph: Graph, devices: Devices, seed: int) -> Strategy:
    """Each operator's degrees and devices drawn independently; the same for the same seed.

    Reductions are split, too, and it is drawn who combines their partial values; where an operator
    is linear in an input that has some, it may share them out.

    An operator gets at most twice as many tasks as there are devices. On a machine of several
    nodes, every second one sums the gradients of its weights inside nodes first.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    names = devices.preferred
    most = 2 * len(names)
    configs: dict[str, ParallelConfig] = {}
    for op in graph.operators:
        parts = reads_partial_values(op, configs)
        configs[op.name] = random_config(op, names, rng, most, reductions=True, parts=parts)
    if len(set(devices.nodes)) > 1:
        rng = np.random.default_rng([seed, 1])
        for name, config in configs.items():
            configs[name] = replace(config, hierarchical=bool(rng.random() < 0.5))
    return Strategy(configs, f"strategy 'random:{seed}'")
