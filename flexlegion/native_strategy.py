"""Strategies as the native library holds them, there and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flexlegion._native import Library, enumeration, names
from flexlegion.graph import Graph
from flexlegion.machine.devices import Devices
from flexlegion.soap import ParallelConfig
from flexlegion.strategy import Strategy


def to_native(
    core: Library, configs: Iterable[tuple[int, ParallelConfig]], devices: Devices
) -> Any:
    """A handle of a strategy, or of a part of one.

    Parameters
    ----------
    core
        The native library.
    configs
        Numbers of operators, and their configurations.
    devices
        The machine.
    """
    handle = _owned(core, core.lib.fl_strategy_create())
    sums = enumeration("fl_sums")
    for operator, config in configs:
        numbers = [devices.number(name) for name in config.devices]
        core.check(
            core.lib.fl_strategy_set(
                handle,
                operator,
                len(config.degrees),
                config.degrees,
                len(numbers),
                numbers,
                sums[config.sums],
            )
        )
    return handle


def from_native(
    core: Library, handle: Any, graph: Graph, devices: Devices, source: str
) -> Strategy:
    """The strategy of a new handle, which this destroys.

    Parameters
    ----------
    core
        The native library.
    handle
        What a search returned.
    graph, devices
        What its operators and devices are.
    source
        Where it came from, for messages.
    """
    handle = _owned(core, handle)
    its = core.ffi.new("fl_config *")
    configs = {}
    sums = names("fl_sums")
    for number, operator in enumerate(graph.operators):
        core.check(core.lib.fl_strategy_get(handle, number, its))
        degrees = tuple(its.degrees[0 : its.n_degrees])
        where = tuple(devices.names[d] for d in its.devices[0 : its.n_devices])
        configs[operator.name] = ParallelConfig(degrees, where, sums[its.sums])
    return Strategy(configs, source)


def _owned(core: Library, handle: Any) -> Any:
    return core.ffi.gc(core.check(handle), core.lib.fl_strategy_destroy)
