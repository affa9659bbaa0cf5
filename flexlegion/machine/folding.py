"""Machine files from machines that were measured: one node, how many of it, and their network.

What `flexlegion.machine.files` expands, this folds: the nodes have to be alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby, permutations
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.machine.files import MAX_NODES, SCHEMA_VERSION
from flexlegion.machine.parts import Device, Link, Switch
from flexlegion.machine.topology import Topology

Json = dict[str, Any]


def machine_document(topology: Topology, description: str, source: str, nodes: int) -> Json:
    """A machine file's content.

    Parameters
    ----------
    topology
        A machine of nodes that are alike: as many devices, linked in the same way, at equal rates.
    description, source
        As in machine files.
    nodes
        How many nodes the file is to have, more or fewer than the topology.

    Raises
    ------
    UserError
        If its nodes differ, or `check_nodes` refuses.
    """
    check_nodes(nodes, topology.nodes)
    topology = _with_hosts(topology)
    types = _Types()
    folded = [_folded(topology, node, types) for node in range(topology.nodes)]
    for node, its in enumerate(folded):
        if its != folded[0]:
            what = next(part for part in its if its[part] != folded[0][part])
            raise UserError(
                f"node {node} has other {what} than node 0, but a machine file describes nodes "
                "that are alike; measure on hosts of one kind, with as many processors each"
            )
    first = folded[0]
    document: Json = {
        "schema_version": SCHEMA_VERSION,
        "description": description,
        "source": source,
        "nodes": nodes,
        "device_types": types.devices,
        "link_types": types.links,
        "node": {
            "devices": first["devices"],
            "switches": first["switches"],
            "links": first["links"],
        },
    }
    if first["links to the network"]:
        document["network"] = {
            "switches": [switch.name for switch in topology.switches if switch.node is None],
            "links": first["links to the network"],
        }
    return document


def check_nodes(nodes: int, measured: int) -> None:
    """Raise `UserError` unless a machine of that many nodes can be told from the measured ones."""
    if not 1 <= nodes <= MAX_NODES:
        raise UserError(f"--nodes has to be from 1 to {MAX_NODES}, but is {nodes}")
    if measured == 1 < nodes:
        raise UserError(
            f"--nodes {nodes} needs to know the network, but all ranks run on one node; measure "
            "on two nodes at least, as in --hosts FILE"
        )


def _with_hosts(topology: Topology) -> Topology:
    """The same machine, in which what forwards data is a switch.

    A stated route may pass through a host's memory, but files state routes within a node only. So
    such a memory gets a switch that its links lead to, and a link to the switch that is as fast as
    the fastest of them.
    """
    names = [device.name for device in topology.devices]
    passed = dict.fromkeys(
        hop.destination for pair in permutations(names, 2) for hop in topology.route(*pair)[:-1]
    )
    forwarding = [memory for memory in topology.memories if memory in passed]
    if not forwarding:
        return topology
    nodes = {device.memory: device.node for device in topology.devices}
    hosts: dict[str, Switch] = {}
    each: Counter[int] = Counter()
    for memory in forwarding:
        node = nodes[memory]
        hosts[memory] = Switch(f"node:{node}/host:{each[node]}", node)
        each[node] += 1

    def moved(end: str) -> str:
        return hosts[end].name if end in hosts else end

    links = [
        Link(f"{its.kind} {a} - {b}", its.kind, a, b, its.bandwidth, its.latency_ns, its.shared)
        for its in topology.links
        for a, b in [(moved(its.source), moved(its.destination))]
    ]
    for memory, host in hosts.items():
        fastest = max(
            its.bandwidth for its in topology.links if memory in (its.source, its.destination)
        )
        links.append(
            Link(f"memory {memory} - {host.name}", "memory", memory, host.name, fastest, 0)
        )
    return Topology(topology.name, topology.devices, links, [*topology.switches, *hosts.values()])


class _Types:
    """Device and link types by name, as they are met."""

    def __init__(self) -> None:
        self.devices: dict[str, Json] = {}
        self.links: dict[str, Json] = {}

    def device(self, device: Device) -> str:
        return _named(
            self.devices,
            device.kind,
            {
                "kind": device.kind,
                "model": device.model,
                "memory_bytes": device.memory_bytes,
                "peak_flops": dict(device.peak_flops),
                "memory_bandwidth": device.memory_bandwidth,
            },
        )

    def link(self, link: Link) -> str:
        facts: Json = {"bandwidth": link.bandwidth, "latency_ns": link.latency_ns}
        return _named(self.links, link.kind, facts | ({"shared": True} if link.shared else {}))


def _named(types: dict[str, Json], kind: str, facts: Json) -> str:
    """The name of the type with these facts: its kind's, with a number if there are several."""
    number = 1
    while True:
        name = kind if number == 1 else f"{kind}-{number}"
        if types.setdefault(name, facts) == facts:
            return name
        number += 1


def _folded(topology: Topology, node: int, types: _Types) -> Json:
    """A node as machine files describe it."""
    mine = [device for device in topology.devices if device.node == node]
    names = _names_within(topology, node, mine)
    inside, outside = [], []
    for link in topology.links:
        ends = [names.get(end) for end in (link.source, link.destination)]
        if None not in ends:
            inside.append([*ends, types.link(link)])
        elif any(ends):
            away = link.destination if ends[1] is None else link.source
            outside.append([next(filter(None, ends)), away, types.link(link)])

    def entry(device: Device) -> tuple[str, str | None]:
        own = device.memory == device.name
        return types.device(device), None if own else names[device.memory]

    devices = [
        {"type": type_, "count": len(list(group))} | ({"memory": memory} if memory else {})
        for (type_, memory), group in groupby(map(entry, mine))
    ]
    switches = [names[switch.name] for switch in topology.switches if switch.node == node]
    return {
        "devices": devices,
        "switches": switches,
        "links": inside,
        "links to the network": outside,
    }


def _names_within(topology: Topology, node: int, mine: Sequence[Device]) -> dict[str, str]:
    """What a node's memories and switches are called in it."""
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    rams = list(dict.fromkeys(device.memory for device in mine if device.memory != device.name))
    for device in mine:
        if device.memory == device.name:
            names[device.name] = f"{device.kind}:{counts[device.kind]}"
        counts[device.kind] += 1
    names |= {memory: f"ram:{i}" for i, memory in enumerate(rams)}
    prefix = f"node:{node}/"
    return names | {
        switch.name: switch.name.removeprefix(prefix)
        for switch in topology.switches
        if switch.node == node
    }
