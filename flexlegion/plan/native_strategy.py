"""Strategies as the native library takes and gives them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from flexlegion.bindings.native import Arrays, enumeration, names
from flexlegion.graph.graph import Graph
from flexlegion.machine.devices import Devices
from flexlegion.strategy.configuration import ParallelConfig


def to_native(
    array: Arrays, configs: Iterable[tuple[int, ParallelConfig]], devices: Devices
) -> Any:
    """The header's ``fl_strategy``: a strategy, or a part of one.

    Parameters
    ----------
    array
        Keeps it.
    configs
        Numbers of operators, and their configurations.
    devices
        The machine.
    """
    sums, sharding = enumeration("fl_sums"), enumeration("fl_sharding")

    @cache
    def numbers(its: tuple[str, ...]) -> Any:  # most operators are on the same devices
        return array("int32_t", [devices.number(name) for name in its])

    entries = [
        {
            "op": operator,
            "n_degrees": len(config.degrees),
            "n_devices": len(config.devices),
            "sums": sums[config.sums],
            "hierarchical": config.hierarchical,
            "buffers": config.buffers,
            "again": config.again,
            "sharding": sharding[config.sharding],
            "degrees": array("int32_t", config.degrees),
            "devices": numbers(tuple(config.devices)),
        }
        for operator, config in configs
    ]
    return array("fl_strategy", [{"n": len(entries), "configs": array("fl_config", entries)}])


def from_native(its: Any, graph: Graph, devices: Devices) -> dict[str, ParallelConfig]:
    """The configurations of a native strategy, by operator name.

    Parameters
    ----------
    its
        The header's ``fl_strategy``.
    graph, devices
        What its operators and devices are.
    """
    configs = {}
    sums, sharding = names("fl_sums"), names("fl_sharding")
    for config in its.configs[0 : its.n]:
        degrees = tuple(config.degrees[0 : config.n_degrees])
        where = tuple(devices.names[d] for d in config.devices[0 : config.n_devices])
        name = graph.operators[config.op].name
        configs[name] = ParallelConfig(
            degrees,
            where,
            sums[config.sums],
            hierarchical=bool(config.hierarchical),
            buffers=config.buffers,
            again=bool(config.again),
            sharding=sharding[config.sharding],
        )
    return configs
