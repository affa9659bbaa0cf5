"""Strategies that split nothing: each operator is one task."""

from __future__ import annotations

from flexlegion.graph.graph import Graph
from flexlegion.graph.tensor import Tensor
from flexlegion.machine.devices import Devices
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.strategy import Strategy


def single(graph: Graph, devices: Devices) -> Strategy:
    """All operators on the first device: what other strategies are compared with."""
    device = devices.preferred[0]
    return Strategy(
        {op.name: ParallelConfig((1,) * len(op.dims), (device,)) for op in graph.operators},
        "strategy 'single'",
    )


def model_parallel(graph: Graph, devices: Devices) -> Strategy:
    """The i-th operator on the i-th device, over and over.

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
