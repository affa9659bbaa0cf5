"""Machines as text and as JSON: what ``flexlegion machine`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.text import Text
from rich.tree import Tree

from flexlegion.console.text import printed, table
from flexlegion.machine.description import Machine
from flexlegion.machine.parts import Device, Hop, Link
from flexlegion.machine.topology import Topology

Json = dict[str, Any]

MOST_ALIKE = 15  # nodes or routes; more are told in one line


def listing(machines: Mapping[str, Machine]) -> str:
    """A table of the shipped machines."""
    rows = []
    for name, machine in machines.items():
        each, nodes = machine.gpus_per_node, machine.nodes
        more = f", {2 * each}, {3 * each} ... {nodes * each}" if nodes > 1 else ""
        rows.append(
            (
                f"{name}xN\nN = 1 to {each}{more}",
                f"{each} {', '.join(machine.device_types)} a node",
                f"1 to {nodes}" if nodes > 1 else "1",
                ", ".join(machine.link_types),
                machine.description,
            )
        )
    columns = ("machine", "devices", "nodes", "links", "description")
    return table(columns, rows, texts=range(len(columns)))


def listing_json(machines: Mapping[str, Machine]) -> Json:
    """The shipped machines; rates in bytes and operations a second, latencies in nanoseconds."""
    return {
        "machines": [
            {
                "name": name,
                "description": machine.description,
                "nodes": machine.nodes,
                "gpus_per_node": machine.gpus_per_node,
                "sizes": list(machine.sizes),
                "device_types": {k: asdict(t) for k, t in machine.device_types.items()},
                "link_types": {k: vars(t) for k, t in machine.link_types.items()},
            }
            for name, machine in machines.items()
        ]
    }


def drawing(topology: Topology) -> str:
    """A tree: nodes, their devices and switches with the links of each, and some routes."""
    count = len(topology.devices)
    tree = Tree(
        Text(
            f"{topology.name}: {count} device{_s(count)}, {topology.nodes} node{_s(topology.nodes)}"
        )
    )
    if topology.description:
        tree.add(Text(topology.description))
    of_node: dict[int, list[Device]] = {node: [] for node in range(topology.nodes)}
    for device in topology.devices:
        of_node[device.node].append(device)
    for first, *others in _alike(topology):
        _draw_node(tree.add(Text(f"node:{first}")), topology, of_node[first])
        if len(others) > MOST_ALIKE:
            devices = [device for node in others for device in of_node[node]]
            nodes = f"node:{others[0]} to node:{others[-1]}"
            tree.add(Text(f"{nodes}: each like node:{first}, with {_range(devices)} together"))
            continue
        for node in others:
            tree.add(Text(f"node:{node}: like node:{first}, with {_range(of_node[node])}"))
    network = [switch for switch in topology.switches if switch.node is None]
    if network:
        branch = tree.add(Text("network"))
        for switch in network:
            leaf = branch.add(Text(f"switch {switch.name}"))
            _draw_links(leaf, list(topology.neighbours(switch.name).values()))
    routes = _routes(topology)
    if routes:
        branch = tree.add(Text(f"routes from {_first(topology).name}"))
        alike: dict[tuple[int, int, int], list[str]] = {}
        for destination, hops in routes.items():
            width = min(hop.link.bandwidth for hop in hops)
            latency = sum(hop.link.latency_ns for hop in hops)
            via = " - ".join([hops[0].source, *(hop.destination for hop in hops)])
            line = f"to {destination}: {_rate(width)}, {latency} ns: {via}"
            alike.setdefault((width, latency, len(hops)), []).append(line)
        for lines in alike.values():
            many = len(lines) > 1 + MOST_ALIKE
            for line in lines[:1] if many else lines:
                branch.add(Text(line))
            if many:
                branch.add(Text(f"and to {len(lines) - 1} more, as wide and as long"))
    return printed(tree)


def drawing_json(topology: Topology) -> Json:
    """The expanded machine; bytes, bytes and operations a second, nanoseconds."""
    routes = _routes(topology)
    return {
        "name": topology.name,
        "description": topology.description,
        "nodes": topology.nodes,
        "devices": [
            {key: value for key, value in vars(device).items() if key != "efficiency"}
            for device in topology.devices
        ],
        "efficiencies": {
            device.model: device.efficiency and asdict(device.efficiency)
            for device in topology.devices
        },
        "switches": [vars(switch) for switch in topology.switches],
        "links": [vars(link) for link in topology.links],
        "routes": [
            {
                "source": _first(topology).name,
                "destination": destination,
                "channels": [hop.channel for hop in hops],
                "bandwidth": min(hop.link.bandwidth for hop in hops),
                "latency_ns": sum(hop.link.latency_ns for hop in hops),
            }
            for destination, hops in routes.items()
        ],
    }


def _alike(topology: Topology) -> list[list[int]]:
    """The nodes of each kind; where kinds are not known, all are taken to be alike."""
    kinds: dict[int, list[int]] = {}
    known = topology.by_nodes.nodes
    for node in range(topology.nodes):
        kinds.setdefault(known[node].kind if len(known) == topology.nodes else 0, []).append(node)
    return list(kinds.values())


def _first(topology: Topology) -> Device:
    gpus = (device for device in topology.devices if device.kind == "gpu")
    return next(gpus, topology.devices[0])


def _routes(topology: Topology) -> dict[str, tuple[Hop, ...]]:
    """From the first GPU (or device): to the others of its node, and to the first of each node."""
    first = _first(topology)
    routes, seen, nodes = {}, {first.memory}, {first.node}
    for device in topology.devices:
        wanted = device.node == first.node or device.node not in nodes
        if wanted and device.kind == first.kind and device.memory not in seen:
            routes[device.name] = topology.route(first.name, device.name)
            seen.add(device.memory)
            nodes.add(device.node)
    return routes


def _draw_node(branch: Tree, topology: Topology, devices: list[Device]) -> None:
    """Memories with their devices, and switches; below each one, what it is linked to."""
    memories: dict[str, list[Device]] = {}
    for device in devices:
        memories.setdefault(device.memory, []).append(device)
    for memory, mine in memories.items():
        one = mine[0]
        peak = ", ".join(f"{p} {rate / 1e12:.4g}" for p, rate in one.peak_flops.items())
        models = ", ".join(dict.fromkeys(device.model for device in mine))
        each = " each" if len(mine) > 1 else ""
        size = f"{_bytes(one.memory_bytes)} at {_rate(one.memory_bandwidth)}"
        name = "" if memory == one.name else f" in {memory}"
        leaf = branch.add(Text(f"{_range(mine)}{name}: {models}, {size}, TFLOP/s{each} {peak}"))
        _draw_links(leaf, list(topology.neighbours(memory).values()))
    for switch in topology.switches:
        if switch.node == devices[0].node:
            leaf = branch.add(Text(f"switch {switch.name}"))
            _draw_links(leaf, list(topology.neighbours(switch.name).values()))


def _draw_links(branch: Tree, hops: list[Hop]) -> None:
    """One line for each type of link."""
    types: dict[tuple[str, str], list[str]] = {}
    for hop in hops:
        types.setdefault((hop.link.kind, _label(hop.link)), []).append(hop.destination)
    for (kind, label), ends in types.items():
        shown = ", ".join(ends) if len(ends) <= 8 else f"{ends[0]} ... {ends[-1]} ({len(ends)})"
        branch.add(Text(f"{kind} ({label}): {shown}"))


def _label(link: Link) -> str:
    ways = "both directions together" if link.shared else "each direction"
    return f"{_rate(link.bandwidth)} {ways}, {link.latency_ns} ns"


def _range(devices: list[Device]) -> str:
    """``gpu:0 to gpu:3`` for each kind."""
    parts = []
    for kind in dict.fromkeys(device.kind for device in devices):
        names = [device.name for device in devices if device.kind == kind]
        parts.append(names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}")
    return ", ".join(parts)


def _bytes(count: int) -> str:
    return f"{count / 2**30:.4g} GiB"


def _rate(rate: int) -> str:
    return f"{rate / 1e9:.4g} GB/s"


def _s(count: int) -> str:
    return "s" * (count != 1)
