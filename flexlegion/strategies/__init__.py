"""Built-in strategies: one file each, a function of the graph and the machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flexlegion.devices import Devices
from flexlegion.errors import UserError
from flexlegion.graph import Graph
from flexlegion.strategies.data_parallel import data_parallel
from flexlegion.strategies.expert import expert
from flexlegion.strategies.gnmt import gnmt
from flexlegion.strategies.model_parallel import model_parallel
from flexlegion.strategies.one_weird_trick import one_weird_trick
from flexlegion.strategies.placement import split
from flexlegion.strategies.random import random
from flexlegion.strategies.single import single
from flexlegion.strategy import Strategy
from flexlegion.topology import Topology

# The names are `flexlegion.strategy.BUILT_IN_NAMES`, which messages list.
BUILT_IN: dict[str, Callable[[Graph, Devices], Strategy]] = {
    "single": single,
    "data": data_parallel,
    "model": model_parallel,
    "expert": expert,
    "one-weird-trick": one_weird_trick,
    "gnmt": gnmt,
}


def resolve(
    spec: str | Path | Strategy, graph: Graph, devices: Devices, topology: Topology | None = None
) -> Strategy:
    """The strategy that `spec` stands for, checked against graph and machine.

    Parameters
    ----------
    spec
        A `Strategy`, a built-in strategy's name (one of `BUILT_IN`, or ``random:SEED``), or the
        path of a strategy file.
    graph
        What it is for.
    devices
        The devices that it may name.
    topology
        The machine that they belong to, for strategies that treat nodes alike, unless `devices`
        knows their nodes, as a topology's and a running machine's do.

    Raises
    ------
    UserError
        If it cannot be read or does not fit.
    """
    if topology is not None:
        nodes = [topology.device(name).node for name in devices.names]
        devices = Devices(devices.names, nodes)
    strategy = _with_tables_in_columns(_find(spec, graph, devices), graph)
    strategy.check(graph, devices)
    return strategy


def _with_tables_in_columns(strategy: Strategy, graph: Graph) -> Strategy:
    """What looks rows up, split in any way, is split into as many pieces of the table's columns."""
    configs = dict(strategy)
    for op in graph.operators:
        config = configs.get(op.name)
        if not op.looks_up or config is None or len(config.devices) != config.tasks:
            continue
        if len(config.degrees) == len(op.dims) and config.tasks != config.degrees[-1]:
            configs[op.name] = split(op, len(op.dims) - 1, config.devices)
    if configs == dict(strategy):
        return strategy
    return Strategy(configs, strategy.source, strategy.found)


def _find(spec: str | Path | Strategy, graph: Graph, devices: Devices) -> Strategy:
    if isinstance(spec, Strategy):
        return spec
    name = str(spec)
    if name in BUILT_IN:
        return BUILT_IN[name](graph, devices)
    if name.startswith("random:"):
        seed = name.removeprefix("random:")
        if not seed.isdecimal() or len(seed) > 18:
            raise UserError(
                f"strategy '{name[:40]}': the seed has to be a number of at most 18 digits, as in "
                "random:7"
            )
        return random(graph, devices, int(seed))
    return Strategy.load(spec)
