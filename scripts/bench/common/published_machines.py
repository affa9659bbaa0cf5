"""The machines of published runs: shipped ones, with what a row says of memory and network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from flexlegion.machine.description import DeviceType, Machine
from flexlegion.machine.files import shipped
from flexlegion.machine.topology import Topology

GIB = 1 << 30


class CannotBeSaidError(Exception):
    """Why a row is not simulated."""


# By how a GPU's name begins in a row: the shipped machine whose nodes it has.
_NODES = {
    "A100": "a100",
    "A800": "a100",
    "B200": "b200",
    "GB200": "gb200",
    "H100": "h100",
    "H200": "h200",
    "H800": "h100",
    "V100": "v100",
    "P100": "v100",  # DGX-1 of both generations: eight GPUs in a hybrid cube mesh
    "K80": "k80",
    "MI300": "mi300",
}
# Memory rates that a row implies: 40 GB boards have slower memory, NVIDIA A100 datasheet.
_MEMORY_RATES = {("A100", 40): 1.555e12, ("H100", 94): 2.4e12}
# Bytes a second that a node's adapters have together, where all that is known is a name.
_NETWORKS = {
    # BigScience measured 42 Gbit/s in all-reduces of 4 nodes, README of the rows: twice that passes
    # the adapters.
    "4x Omni-Path 100 Gbit/s per node": 10.5e9,
    "1x EDR InfiniBand 100 Gbit/s per node": 12.5e9,
    "8x HDR InfiniBand 200 Gbit/s per node, fat tree": 200e9,
    "400 Gbit/s CX-7 per GPU": 400e9,
    "400 Gbit/s RDMA per GPU": 400e9,
}


def machine_of(row: Mapping[str, Any]) -> Topology:
    """The machine that a row ran on."""
    its = row["hardware"]
    per_node = its["gpus_per_node"] or 8
    return _machine(
        its["gpu"],
        its["gpu_memory_gb"],
        its["gpus"],
        per_node,
        (its["inter_node"] or "not stated") if its["gpus"] > per_node else None,
    )


@cache
def _machine(gpu: str, memory: int, gpus: int, per_node: int, network: str | None) -> Topology:
    name = next((nodes for start, nodes in _NODES.items() if gpu.startswith(start)), None)
    if name is None:
        raise CannotBeSaidError(f"no machine of {gpu}")
    machine = shipped()[name]
    (name, device), *others = machine.device_types.items()
    if others:
        raise CannotBeSaidError(f"{gpu}: nodes of several kinds")
    if gpu.startswith("P100"):
        machine, device = _dgx1_p100(machine)
    changed = _with_memory(device, gpu, memory)
    machine = replace(machine, device_types={name: changed})
    if network is not None:
        machine = _with_network(machine, network)
    if gpus < per_node or gpus % per_node == 0:
        return machine.topology(gpus)
    raise CannotBeSaidError(f"{gpus} GPUs in nodes of {per_node}")


def _with_memory(device: DeviceType, gpu: str, memory: int) -> DeviceType:
    rate = _MEMORY_RATES.get((gpu.partition("-")[0], memory), device.memory_bandwidth)
    if "96 GB" in gpu:
        # 500 W instead of 700: products reach about as much less as the clock that the power
        # allows, an estimate.
        efficiency = device.efficiency
        assert efficiency is not None
        efficiency = replace(
            efficiency,
            matmul=efficiency.matmul * 0.85,
            matmul_backward=efficiency.matmul_backward * 0.85,
        )
        device = replace(device, efficiency=efficiency)
        rate = 2.4e12
    return replace(device, memory_bytes=round(memory * GIB * 0.99), memory_bandwidth=int(rate))


def _dgx1_p100(machine: Machine) -> tuple[Machine, DeviceType]:
    """A DGX-1 of the first generation: NVLinks of 20 GB/s, one between a pair."""
    links = {
        name: replace(link, bandwidth=20_000_000_000) if name.startswith("nvlink") else link
        for name, link in machine.link_types.items()
    }
    p100 = shipped()["p100"].device_types["P100"]
    return replace(machine, link_types=links), p100


def _with_network(machine: Machine, network: str) -> Machine:
    """With that rate out of a node, shared by as many adapters as the shipped machine has."""
    rate = _NETWORKS.get(network)
    if rate is None:
        match = re.search(r"(\d+) Gbit/s (?:\w+ )?per node", network)
        if match is None:
            return machine  # not stated: the shipped machine's
        rate = int(match[1]) * 1e9 / 8
    adapters = len(machine.network_links)
    kind = machine.network_links[0][2]
    link = replace(machine.link_types[kind], bandwidth=int(rate / adapters))
    return replace(machine, link_types={**machine.link_types, kind: link})
