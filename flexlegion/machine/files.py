"""Machine files: kinds of devices and links, one node, how many of it, the network between them.

A file stays as small as that for any number of nodes; `Machine.topology` expands it. The machines
in ``platforms/`` go by names such as ``p100x8``: as many GPUs of as few nodes as possible.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexlegion.base.documents import Section, read_json
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import shown
from flexlegion.base.suggestions import did_you_mean
from flexlegion.machine.efficiency import Efficiency, parse_efficiency
from flexlegion.machine.topology import Device, Link, Switch, Topology, check_graph

SCHEMA_VERSION = 1
PLATFORMS = Path(__file__).with_name("platforms")
KINDS = ("gpu", "cpu")
PRECISIONS = ("float64", "float32", "tfloat32", "float16", "bfloat16", "float8")

# More than any machine that one trains on; a number too many should not fill the memory.
MAX_NODES = 1024
MAX_DEVICES = 4096
MAX_PARTS = 65536  # links, switches
MAX_RATE = 10**18
MAX_BYTES = 10**15
MAX_LATENCY_NS = 10**12

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,39}")
_DEVICE = re.compile(r"(gpu|cpu):[0-9]+")


@dataclass(frozen=True)
class DeviceType:
    """What all devices of a type have in common; see `flexlegion.machine.topology.Device`."""

    kind: str
    model: str
    memory_bytes: int
    peak_flops: Mapping[str, int]
    memory_bandwidth: int
    efficiency: Efficiency | None
    source: str


@dataclass(frozen=True)
class LinkType:
    """What all links of a type have in common; see `flexlegion.machine.topology.Link`."""

    bandwidth: int
    latency_ns: int
    shared: bool
    source: str


@dataclass(frozen=True)
class NodeDevice:
    """A device of every node; a memory of its own bears its name in the node, as ``gpu:0``."""

    kind: str
    number: int
    type: str
    memory: str

    @property
    def name(self) -> str:
        """Its name in the node."""
        return f"{self.kind}:{self.number}"


@dataclass(frozen=True)
class Machine:
    """A parsed machine file.

    Parameters
    ----------
    name
        For people.
    where
        The file, for messages.
    description
        A line.
    nodes
        How many nodes it has at most.
    device_types, link_types
        By name.
    node_devices, node_switches
        The vertices of every node.
    node_links
        (end, end, type) in every node.
    node_routes
        Stated routes in every node: the vertices they pass.
    network_switches
        The vertices between nodes.
    network_links
        (end, end, type); an end in a node means one link for every node.
    """

    name: str
    where: str
    description: str
    nodes: int
    device_types: Mapping[str, DeviceType]
    link_types: Mapping[str, LinkType]
    node_devices: tuple[NodeDevice, ...]
    node_switches: tuple[str, ...]
    node_links: tuple[tuple[str, str, str], ...]
    node_routes: tuple[tuple[str, ...], ...]
    network_switches: tuple[str, ...]
    network_links: tuple[tuple[str, str, str], ...]

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a node."""
        return sum(self.device_types[d.type].kind == "gpu" for d in self.node_devices)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of GPUs that can be used: a part of one node, or all of some nodes."""
        each = self.gpus_per_node
        if each == 0:
            return ()
        return (*range(1, each), *range(each, each * self.nodes + 1, each))

    def topology(self, gpus: int | None = None) -> Topology:
        """The expanded machine.

        Parameters
        ----------
        gpus
            How many GPUs to use, one of `sizes`; all by default.

        Raises
        ------
        UserError
            If it cannot have that many, or its devices cannot reach each other.
        """
        each = self.gpus_per_node
        nodes, name = self.nodes, self.name
        if gpus is not None:
            if gpus not in self.sizes:
                parts = f"1 to {each}" if each > 1 else "1"
                more = f", or a multiple of {each} up to {each * nodes}" if nodes > 1 else ""
                raise UserError(
                    f"{self.where}: cannot use {gpus} GPUs of this machine; use {parts}{more}"
                )
            nodes, name = -(-gpus // each), f"{name}x{gpus}"
            each = min(each, gpus)
        used = [d for d in self.node_devices if d.kind != "gpu" or d.number < each]
        places = [self._places(used, node) for node in range(nodes)]
        local = {d.memory for d in used} | set(self.node_switches)
        links, routes = [], []
        for at in places:
            for a, b, kind in self.node_links:
                if a in local and b in local:
                    links.append(self._link(at[a], at[b], kind))
            routes += [[at[v] for v in r] for r in self.node_routes if local.issuperset(r)]
        for a, b, kind in self.network_links:
            inside = [end for end in (a, b) if end not in self.network_switches]
            if local.issuperset(inside):
                for at in places if inside else places[:1]:
                    links.append(self._link(at.get(a, a), at.get(b, b), kind))
        devices = [self._device(d, node, at) for node, at in enumerate(places) for d in used]
        return Topology(
            name,
            sorted(devices, key=lambda device: device.kind),  # as `Devices.of` counts them
            links,
            [
                *(Switch(at[s], n) for n, at in enumerate(places) for s in self.node_switches),
                *map(Switch, self.network_switches),
            ],
            routes,
            description=self.description,
            where=self.where,
        )

    def _places(self, used: Sequence[NodeDevice], node: int) -> dict[str, str]:
        """What a node's devices, memories and switches are called on the whole machine."""
        each = Counter(device.kind for device in used)
        names = {device.memory: f"node:{node}/{device.memory}" for device in used}
        names |= {switch: f"node:{node}/{switch}" for switch in self.node_switches}
        return names | {d.name: f"{d.kind}:{node * each[d.kind] + d.number}" for d in used}

    def _device(self, device: NodeDevice, node: int, at: Mapping[str, str]) -> Device:
        type_ = self.device_types[device.type]
        return Device(
            at[device.name],
            type_.kind,
            type_.model,
            node,
            at[device.memory],
            type_.memory_bytes,
            type_.peak_flops,
            type_.memory_bandwidth,
            type_.efficiency,
        )

    def _link(self, a: str, b: str, kind: str) -> Link:
        type_ = self.link_types[kind]
        name = f"{kind} {a} - {b}"
        return Link(name, kind, a, b, type_.bandwidth, type_.latency_ns, type_.shared)


def shipped() -> dict[str, Machine]:
    """The machines that come with the package, by name."""
    return {path.stem: read_machine(path, path.stem) for path in sorted(PLATFORMS.glob("*.json"))}


def machine_names() -> list[str]:
    """What shipped machines are called with each number of GPUs that they can have."""
    return [f"{name}x{n}" for name, machine in shipped().items() for n in machine.sizes]


def described_machine(spec: str | Path) -> Topology:
    """The machine that a file describes: a shipped one (``p100x8``), or that of this path.

    Raises
    ------
    UserError
        If there is no such machine, or its file is wrong.
    """
    match = re.fullmatch(r"([a-z][a-z0-9]{0,39}?)(?:x(0|[1-9][0-9]{0,8}))?", str(spec))
    if match:
        path = PLATFORMS / f"{match[1]}.json"
        if match[2] and path.is_file():
            return read_machine(path, match[1], str(spec)).topology(int(match[2]))
        if path.is_file() and not Path(spec).exists():
            sizes = read_machine(path, match[1]).sizes
            raise UserError(
                f"{spec}: the number of GPUs is missing; use {spec}x{sizes[0]} to "
                f"{spec}x{sizes[-1]}"
            )
    return read_machine(spec, Path(spec).stem).topology()


def read_machine(path: str | Path, name: str, where: str | None = None) -> Machine:
    """Parse a machine file.

    Parameters
    ----------
    path
        The file.
    name, where
        The machine's name, and what messages call the file; its path by default.

    Raises
    ------
    UserError
        If the file is missing or is not such a file. Whether all devices can reach each other is
        checked when it is expanded.
    """
    platforms = sorted(p.stem for p in PLATFORMS.glob("*.json"))
    number = re.search(r"x[0-9]{1,3}$", str(path))
    meant = did_you_mean(str(path), [f"{name}{number[0]}" for name in platforms] if number else [])
    names = ", ".join(f"{name}xN" for name in platforms)
    document = read_json(
        path,
        "machine",
        f"give a path, or one of {names} with N GPUs, as in p100x8{meant}",
        "as docs/machines.md shows it",
    )
    return parse_machine(document, name, where or str(path))


def parse_machine(document: Any, name: str, where: str) -> Machine:
    """A machine from a file's content; see `read_machine`."""
    top = Section.of(
        document,
        where,
        ["schema_version", "description", "nodes", "device_types", "link_types", "node"],
        ["source", "network"],
    )
    version = top.values["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise UserError(
            f"{where}: schema_version is {shown(version)}, but this program reads {SCHEMA_VERSION}"
        )
    top.text("source")
    nodes = top.integer("nodes", 1, MAX_NODES)
    device_types = {
        key: _device_type(value, key, f"{where}: device type {_name_of(key, where)}")
        for key, value in top.entries("device_types").items()
    }
    link_types = {
        key: _link_type(value, f"{where}: link type {_name_of(key, where)}")
        for key, value in _object(top, "link_types").items()
    }
    node = Section.of(
        top.values["node"], f"{where}: node", ["devices"], ["switches", "links", "routes"]
    )
    devices = _node_devices(node, device_types, nodes)
    memories = list(dict.fromkeys(device.memory for device in devices))
    switches = _switches(node)
    links = _links(node, link_types)
    routes = tuple(_route(route, node.where) for route in node.items("routes"))
    ends = [(a, b) for a, b, _ in links]
    check_graph(memories, switches, ends, routes, node.where)
    network = Section.of(
        top.values.get("network", {}), f"{where}: network", [], ["switches", "links"]
    )
    between = _switches(network)
    outside = _links(network, link_types)
    check_graph([*memories, *switches], between, [(a, b) for a, b, _ in outside], [], network.where)
    for a, b, _ in outside:
        if a not in between and b not in between:
            raise UserError(
                f"{network.where}: link {a} - {b}: both ends are in a node; one has to be a "
                "switch of the network"
            )
    sizes = {
        "links": len(links) + len(outside),
        "switches": len(switches) + len(between),
        "vertices on stated routes": sum(map(len, routes)),
    }
    for what, size in sizes.items():
        if nodes * size > MAX_PARTS:
            raise UserError(
                f"{where}: {nodes} nodes have {nodes * size} {what}; a machine has at most "
                f"{MAX_PARTS}"
            )
    return Machine(
        name,
        where,
        top.text("description"),
        nodes,
        device_types,
        link_types,
        devices,
        switches,
        links,
        routes,
        between,
        outside,
    )


def _name_of(value: Any, where: str) -> str:
    """A name that the file gives to a type, switch or memory."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise UserError(
            f"{where}: a name has to be a letter, then up to 39 letters, digits or _ . : -, but "
            f"is {shown(value)}"
        )
    return value


def _object(section: Section, key: str) -> dict[str, Any]:
    """Like `Section.entries`, but it may be empty: a machine of one device has no links."""
    return {} if section.values[key] == {} else section.entries(key)


def _device_type(value: Any, name: str, where: str) -> DeviceType:
    keys = ["kind", "memory_bytes", "peak_flops", "memory_bandwidth"]
    section = Section.of(value, where, keys, ["model", "efficiency", "source"])
    kind = section.values["kind"]
    if kind not in KINDS:
        raise section.fail("kind", "gpu or cpu")
    place = f"{where}: peak_flops"
    optional = [precision for precision in PRECISIONS if precision != "float32"]
    flops = Section.of(section.values["peak_flops"], place, ["float32"], optional)
    efficiency = None
    if "efficiency" in section.values:
        its = section.values["efficiency"]
        efficiency = parse_efficiency(its, f"{where}: efficiency", kind)
    return DeviceType(
        kind,
        section.text("model", name),
        section.integer("memory_bytes", 1, MAX_BYTES, "bytes"),
        {p: flops.integer(p, 1, MAX_RATE) for p in PRECISIONS if p in flops.values},
        section.integer("memory_bandwidth", 1, MAX_RATE, "bytes a second"),
        efficiency,
        section.text("source"),
    )


def _link_type(value: Any, where: str) -> LinkType:
    section = Section.of(value, where, ["bandwidth", "latency_ns"], ["shared", "source"])
    return LinkType(
        section.integer("bandwidth", 1, MAX_RATE, "bytes a second"),
        section.integer("latency_ns", 0, MAX_LATENCY_NS, "nanoseconds"),
        section.boolean("shared", False),
        section.text("source"),
    )


def _node_devices(
    node: Section, types: Mapping[str, DeviceType], nodes: int
) -> tuple[NodeDevice, ...]:
    """The devices of a node, numbered within it for each kind."""
    counts = dict.fromkeys(KINDS, 0)
    devices: list[NodeDevice] = []
    sizes: dict[str, int] = {}
    for position, value in enumerate(node.items("devices")):
        where = f"{node.where}: entry {position} of 'devices'"
        entry = Section.of(value, where, ["type", "count"], ["memory"])
        type_name = entry.values["type"]
        if not isinstance(type_name, str) or type_name not in types:
            raise entry.fail("type", f"one of {', '.join(types)}")
        kind = types[type_name].kind
        memory = _name_of(entry.values["memory"], where) if "memory" in entry.values else None
        if memory is not None:
            _no_device_name(memory, where)
            size = types[type_name].memory_bytes
            if sizes.setdefault(memory, size) != size:
                raise UserError(
                    f"{where}: the memory {memory} has {size} bytes here, but {sizes[memory]} "
                    "bytes before; give types that share a memory the same 'memory_bytes'"
                )
        count = entry.integer("count", 1, MAX_DEVICES)
        if nodes * (len(devices) + count) > MAX_DEVICES:
            raise UserError(
                f"{where}: {nodes} nodes have at least {nodes * (len(devices) + count)} devices; a "
                f"machine has at most {MAX_DEVICES}"
            )
        for _ in range(count):
            number = counts[kind]
            devices.append(NodeDevice(kind, number, type_name, memory or f"{kind}:{number}"))
            counts[kind] += 1
    if not devices:
        raise UserError(f"{node.where}: 'devices' is empty; a node has at least one device")
    return tuple(devices)


def _switches(section: Section) -> tuple[str, ...]:
    names = [_name_of(name, f"{section.where}: switches") for name in section.items("switches")]
    for name in names:
        _no_device_name(name, f"{section.where}: switches")
    return tuple(names)


def _no_device_name(name: str, where: str) -> None:
    if _DEVICE.fullmatch(name):
        raise UserError(f"{where}: {name} is a name for devices only; choose another")


def _links(section: Section, types: Mapping[str, LinkType]) -> tuple[tuple[str, str, str], ...]:
    """Links as a file has them: ``["gpu:0", "gpu:1", "nvlink"]``."""
    links = []
    for link in section.items("links"):
        if not _names(link) or len(link) != 3:
            raise UserError(
                f"{section.where}: a link has to be a list of two ends and a link type, as in "
                f'["gpu:0", "gpu:1", "nvlink"], but is {shown(link)}'
            )
        if link[2] not in types:
            raise UserError(
                f"{section.where}: link {link[0]} - {link[1]}: unknown link type {shown(link[2])}; "
                f"the choices are {', '.join(types) or 'none, so add it to link_types'}"
            )
        links.append((link[0], link[1], link[2]))
    return tuple(links)


def _route(route: Any, where: str) -> tuple[str, ...]:
    if not _names(route):
        raise UserError(
            f'{where}: a route has to be a list of names, as in ["gpu:0", "gpu:4", "gpu:5"], but '
            f"is {shown(route)}"
        )
    return tuple(route)


def _names(value: Any) -> bool:
    """Whether it is a list of texts that can be names."""
    return isinstance(value, list) and all(
        isinstance(name, str) and _NAME.fullmatch(name) for name in value
    )
