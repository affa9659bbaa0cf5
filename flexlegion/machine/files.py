"""Machine files: kinds of devices and links, nodes, how many of each, the network between them.

A file stays as small as that for any number of nodes; `Machine.topology` expands it. The machines
in ``platforms/`` go by names such as ``p100x8``: as many GPUs of as few nodes as possible.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from flexlegion.base.documents import Section, read_json
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import shown
from flexlegion.base.suggestions import did_you_mean
from flexlegion.machine.description import DeviceType, Grid, LinkType, Machine, NodeDevice, NodeKind
from flexlegion.machine.efficiency import parse_efficiency
from flexlegion.machine.routes import check_graph, check_unique
from flexlegion.machine.topology import Topology

SCHEMA_VERSION = 1
PLATFORMS = Path(__file__).with_name("platforms")
KINDS = ("gpu", "cpu")
PRECISIONS = ("float64", "float32", "tfloat32", "float16", "bfloat16", "float8")

# More than any machine that one trains on; a number too many should not fill the memory.
MAX_NODES = 16384
MAX_DEVICES = 65536
MAX_PARTS = 262144  # links, switches
MAX_RATE = 10**18
MAX_BYTES = 10**15
MAX_LATENCY_NS = 10**12
MAX_EXTENT = 32  # of a torus: routes are short

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,39}")
_END = re.compile(rf"{_NAME.pattern}|[A-Za-z][A-Za-z0-9_.:-]{{0,38}}:\*")
_DEVICE = re.compile(r"(gpu|cpu):[0-9]+")


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
    machine, gpus = described(spec)
    return machine.topology(gpus)


def described(spec: str | Path) -> tuple[Machine, int | None]:
    """The same as its file has it, and how many of its GPUs are meant; None: all."""
    match = re.fullmatch(r"([a-z][a-z0-9]{0,39}?)(?:x(0|[1-9][0-9]{0,8}))?", str(spec))
    if match:
        path = PLATFORMS / f"{match[1]}.json"
        if match[2] and path.is_file():
            return read_machine(path, match[1], str(spec)), int(match[2])
        if path.is_file() and not Path(spec).exists():
            sizes = read_machine(path, match[1]).sizes
            raise UserError(
                f"{spec}: the number of GPUs is missing; use {spec}x{sizes[0]} to "
                f"{spec}x{sizes[-1]}"
            )
    return read_machine(spec, Path(spec).stem), None


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
    several = isinstance(document, dict) and isinstance(document.get("node"), list)
    keys = ["schema_version", "description", "nodes", "device_types", "link_types", "node"]
    optional = ["source", "network"]
    if several:
        keys.remove("nodes")
        optional.append("nodes")
    top = Section.of(document, where, keys, optional)
    version = top.values["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise UserError(
            f"{where}: schema_version is {shown(version)}, but this program reads {SCHEMA_VERSION}"
        )
    top.text("source")
    device_types = {
        key: _device_type(value, key, f"{where}: device type {_name_of(key, where)}")
        for key, value in top.entries("device_types").items()
    }
    link_types = {
        key: _link_type(value, f"{where}: link type {_name_of(key, where)}")
        for key, value in _object(top, "link_types").items()
    }
    kinds = _node_kinds(top, device_types, link_types)
    network = Section.of(
        top.values.get("network", {}), f"{where}: network", [], ["switches", "links", "torus"]
    )
    between = _network_switches(network)
    vertices = dict.fromkeys(v for k in kinds for v in (*_memories(k.devices), *k.switches))
    outside = _links(network, link_types, [*vertices, *between])
    check_graph(vertices, between, [(a, b) for a, b, _ in outside], [], network.where)
    for a, b, _ in outside:
        if a not in between and b not in between:
            raise UserError(
                f"{network.where}: link {a} - {b}: both ends are in a node; one has to be a "
                "switch of the network"
            )
    torus = None
    if "torus" in network.values:
        torus = _torus(network, kinds, link_types)
        if between or outside:
            raise UserError(
                f"{network.where}: a torus joins all nodes; leave its switches and links out"
            )
    sizes = {
        "links": sum(k.count * (len(k.links) + len(outside)) for k in kinds),
        "switches": sum(k.count * (len(k.switches) + len(between)) for k in kinds),
        "vertices on stated routes": sum(k.count * sum(map(len, k.routes)) for k in kinds),
    }
    for what, size in sizes.items():
        if size > MAX_PARTS:
            raise UserError(
                f"{where}: {sum(k.count for k in kinds)} nodes have {size} {what}; a machine has "
                f"at most {MAX_PARTS}"
            )
    return Machine(
        name,
        where,
        top.text("description"),
        device_types,
        link_types,
        kinds,
        between,
        outside,
        torus,
    )


def _node_kinds(
    top: Section, device_types: Mapping[str, DeviceType], link_types: Mapping[str, LinkType]
) -> tuple[NodeKind, ...]:
    """Nodes that are alike, or a list of several kinds."""
    several = isinstance(top.values["node"], list)
    values = top.items("node") if several else [top.values["node"]]
    if not values:
        raise UserError(f"{top.where}: 'node' is empty; a machine has at least one kind of nodes")
    if several and "nodes" in top.values:
        raise UserError(
            f"{top.where}: leave 'nodes' out where 'node' is a list; each entry has a 'count'"
        )
    kinds: list[NodeKind] = []
    for position, value in enumerate(values):
        where = f"{top.where}: node" + f" {position}" * several
        keys = ["count", "devices"] if several else ["devices"]
        node = Section.of(value, where, keys, ["switches", "links", "routes"])
        count = (node if several else top).integer("count" if several else "nodes", 1, MAX_NODES)
        others = sum(kind.count * len(kind.devices) for kind in kinds)
        devices = _node_devices(node, device_types, count, others)
        switches = _switches(node)
        vertices = [*_memories(devices), *switches]
        links = _links(node, link_types, vertices)
        routes = tuple(_route(route, where) for route in node.items("routes"))
        check_graph(_memories(devices), switches, [(a, b) for a, b, _ in links], routes, where)
        kinds.append(NodeKind(count, devices, switches, links, routes))
    if (nodes := sum(kind.count for kind in kinds)) > MAX_NODES:
        raise UserError(f"{top.where}: has {nodes} nodes; a machine has at most {MAX_NODES}")
    return tuple(kinds)


def _memories(devices: Sequence[NodeDevice]) -> list[str]:
    return list(dict.fromkeys(device.memory for device in devices))


def _network_switches(network: Section) -> dict[str, int | None]:
    """Of each switch between nodes, how many nodes share one; None: all."""
    found: dict[str, int | None] = {}
    for position, value in enumerate(network.items("switches")):
        span = None
        if isinstance(value, dict):
            where = f"{network.where}: entry {position} of 'switches'"
            entry = Section.of(value, where, ["name", "nodes"], [])
            value, span = entry.values["name"], entry.integer("nodes", 1, MAX_NODES)
        name = _name_of(value, f"{network.where}: switches")
        _no_device_name(name, f"{network.where}: switches")
        check_unique([*found, name], "switch", network.where)
        found[name] = span
    spans = sorted({span for span in found.values() if span is not None})
    for small, large in pairwise(spans):
        if large % small:
            raise UserError(
                f"{network.where}: switches of {small} and of {large} nodes; groups have to be "
                f"made of whole smaller ones, so take a multiple of {small}"
            )
    return found


def _torus(network: Section, kinds: Sequence[NodeKind], types: Mapping[str, LinkType]) -> Grid:
    where = f"{network.where}: torus"
    entry = Section.of(network.values["torus"], where, ["switch", "shape", "link"], [])
    switch, link, shape = (entry.values[key] for key in ("switch", "link", "shape"))
    known = set(kinds[0].switches).intersection(*(kind.switches for kind in kinds))
    if switch not in known:
        raise entry.fail("switch", f"a switch of every node: {', '.join(sorted(known)) or 'none'}")
    if not isinstance(link, str) or link not in types:
        raise entry.fail("link", f"one of {', '.join(types)}")
    nodes = sum(kind.count for kind in kinds)
    whole = [type(n) is int and 1 <= n <= MAX_EXTENT for n in entry.items("shape")]
    if not 1 <= len(whole) <= 6 or not all(whole) or prod(shape) != nodes:
        raise entry.fail(
            "shape", f"up to 6 extents from 1 to {MAX_EXTENT} whose product is {nodes}, the nodes"
        )
    return Grid(switch, tuple(shape), tuple(shape), link)


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
    node: Section, types: Mapping[str, DeviceType], nodes: int, others: int
) -> tuple[NodeDevice, ...]:
    """The devices of a node, numbered within it for each kind; other nodes have so many."""
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
        if (every := others + nodes * (len(devices) + count)) > MAX_DEVICES:
            raise UserError(
                f"{where}: so far the machine has {every} devices; it can have at most "
                f"{MAX_DEVICES}"
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


def _links(
    section: Section, types: Mapping[str, LinkType], vertices: Sequence[str]
) -> tuple[tuple[str, str, str], ...]:
    """Links as a file has them: ``["gpu:0", "gpu:1", "nvlink"]``; ``gpu:*``: all numbers."""
    links = []
    for link in section.items("links"):
        if not isinstance(link, list) or len(link) != 3 or not _names([*link[:2]], _END):
            raise UserError(
                f"{section.where}: a link has to be a list of two ends and a link type, as in "
                f'["gpu:0", "gpu:1", "nvlink"], but is {shown(link)}'
            )
        a, b, type_ = link
        if not isinstance(type_, str) or type_ not in types:
            raise UserError(
                f"{section.where}: link {a} - {b}: unknown link type {shown(type_)}; "
                f"the choices are {', '.join(types) or 'none, so add it to link_types'}"
            )
        links += [(*ends, type_) for ends in _each(a, b, vertices, section.where)]
    return tuple(links)


def _each(a: str, b: str, vertices: Sequence[str], where: str) -> Iterator[tuple[str, str]]:
    """The links that one with ``*`` stands for: one for each number that all its ends have."""
    if "*" not in a + b:
        yield a, b
        return
    its = a if "*" in a else b
    numbers = [
        vertex.removeprefix(its[:-1])
        for vertex in vertices
        if vertex.startswith(its[:-1]) and vertex.removeprefix(its[:-1]).isdecimal()
    ]
    ends = [(a.replace("*", number), b.replace("*", number)) for number in numbers]
    ends = [pair for pair in ends if set(vertices).issuperset(pair)]
    if not ends:
        raise UserError(
            f"{where}: link {a} - {b}: there is nothing of these names; * stands for all numbers, "
            "the same at both ends"
        )
    yield from ends


def _route(route: Any, where: str) -> tuple[str, ...]:
    if not _names(route):
        raise UserError(
            f'{where}: a route has to be a list of names, as in ["gpu:0", "gpu:4", "gpu:5"], but '
            f"is {shown(route)}"
        )
    return tuple(route)


def _names(value: Any, pattern: re.Pattern[str] = _NAME) -> bool:
    """Whether it is a list of texts that can be names."""
    return isinstance(value, list) and all(
        isinstance(name, str) and pattern.fullmatch(name) for name in value
    )
