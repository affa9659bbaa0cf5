"""What a machine file says, and the machine that it stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from flexlegion.base.errors import UserError
from flexlegion.machine.efficiency import Efficiency
from flexlegion.machine.node_routes import Node, NodeRoutes, Torus, Wire
from flexlegion.machine.parts import Device, Link, Switch
from flexlegion.machine.topology import Topology


@dataclass(frozen=True)
class DeviceType:
    """What all devices of a type have in common; see `flexlegion.machine.parts.Device`."""

    kind: str
    model: str
    memory_bytes: int
    peak_flops: Mapping[str, int]
    memory_bandwidth: int
    efficiency: Efficiency | None
    source: str


@dataclass(frozen=True)
class LinkType:
    """What all links of a type have in common; see `flexlegion.machine.parts.Link`."""

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
class NodeKind:
    """Nodes that are alike.

    Parameters
    ----------
    count
        How many there are at most.
    devices, switches
        The vertices of each.
    links
        (end, end, type) in each.
    routes
        Stated routes in each: the vertices they pass.
    """

    count: int
    devices: tuple[NodeDevice, ...]
    switches: tuple[str, ...]
    links: tuple[tuple[str, str, str], ...]
    routes: tuple[tuple[str, ...], ...]

    @property
    def gpus(self) -> int:
        """Of a node."""
        return sum(device.kind == "gpu" for device in self.devices)

    def part(self, count: int, gpus: int) -> NodeKind:
        """So many nodes, of each the first so many GPUs."""
        devices = tuple(d for d in self.devices if d.kind != "gpu" or d.number < gpus)
        vertices = {d.memory for d in devices} | set(self.switches)
        return NodeKind(
            count,
            devices,
            self.switches,
            tuple(link for link in self.links if vertices.issuperset(link[:2])),
            tuple(route for route in self.routes if vertices.issuperset(route)),
        )


@dataclass(frozen=True)
class Grid:
    """A torus of nodes, see `flexlegion.machine.node_routes.Torus`.

    Parameters
    ----------
    switch
        The vertex of every node that it joins.
    shape
        Extents.
    whole
        Extents of the whole machine. Only where these are reached, the last node of a row is linked
        to the first one.
    link
        The type of its links.
    """

    switch: str
    shape: tuple[int, ...]
    whole: tuple[int, ...]
    link: str

    def part(self, nodes: int) -> Grid | None:
        """With that many nodes: the longest dimension is halved, as often as it takes."""
        shape = list(self.shape)
        while prod(shape) > nodes and max(shape) % 2 == 0:
            shape[shape.index(max(shape))] //= 2
        return replace(self, shape=tuple(shape)) if prod(shape) == nodes else None


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
    device_types, link_types
        By name.
    kinds
        Its nodes.
    network_switches
        The vertices between nodes; how many nodes, one after the other, share one. All: None.
    network_links
        (end, end, type). An end in a node means one link for every node that has it, and otherwise
        there is one for each switch of the end of which there are more.
    torus
        What joins nodes in place of these.
    """

    name: str
    where: str
    description: str
    device_types: Mapping[str, DeviceType]
    link_types: Mapping[str, LinkType]
    kinds: tuple[NodeKind, ...]
    network_switches: Mapping[str, int | None]
    network_links: tuple[tuple[str, str, str], ...]
    torus: Grid | None = None

    @property
    def nodes(self) -> int:
        """How many it has at most."""
        return sum(kind.count for kind in self.kinds)

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a node; of the first, if nodes differ."""
        return self.kinds[0].gpus

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of GPUs that can be used: a part of one node, or all of some nodes."""
        each, nodes = self.gpus_per_node, range(1, self.nodes + 1)
        if len(self.kinds) > 1:
            return (sum(kind.gpus * kind.count for kind in self.kinds),)
        if each == 0:
            return ()
        if self.torus is not None:
            return tuple(n * each for n in nodes if self.torus.part(n) is not None)
        return (*range(1, each), *(n * each for n in nodes))

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
        return _Expansion(self if gpus is None else self._part(gpus)).topology()

    def _part(self, gpus: int) -> Machine:
        sizes, each = self.sizes, self.gpus_per_node
        if gpus not in sizes:
            raise UserError(
                f"{self.where}: cannot use {gpus} GPUs of this machine; use {self._choices()}"
            )
        name = f"{self.name}x{gpus}"
        if len(self.kinds) > 1:
            return replace(self, name=name)
        nodes = -(-gpus // each)
        kind = self.kinds[0].part(nodes, min(each, gpus))
        torus = self.torus and self.torus.part(nodes)
        return replace(self, name=name, kinds=(kind,), torus=torus)

    def _choices(self) -> str:
        """The sizes, for messages."""
        sizes, each = self.sizes, self.gpus_per_node
        if len(self.kinds) > 1 or self.torus is not None or not sizes:
            return " or ".join(map(str, sizes))
        text = f"1 to {each}" if each > 1 else "1"
        return text + (f", or a multiple of {each} up to {sizes[-1]}" if self.nodes > 1 else "")


class _Expansion:
    """A machine file's devices and links, once for each node or group."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.links: list[Link] = []
        self.wires: list[Wire] = []
        self.places: list[dict[str, str]] = []  # of each node: what its vertices are called
        self.runs: list[range] = []  # the nodes of each kind
        counted = {"gpu": 0, "cpu": 0}
        for kind in machine.kinds:
            self.runs.append(range(len(self.places), len(self.places) + kind.count))
            for node in self.runs[-1]:
                at = {d.memory: f"node:{node}/{d.memory}" for d in kind.devices}
                at |= {switch: f"node:{node}/{switch}" for switch in kind.switches}
                for device in kind.devices:
                    at[device.name] = f"{device.kind}:{counted[device.kind] + device.number}"
                for device in kind.devices:
                    counted[device.kind] += 1
                self.places.append(at)

    def topology(self) -> Topology:
        """The machine."""
        machine = self.machine
        devices, switches, nodes = [], [], []
        for number, (kind, run) in enumerate(zip(machine.kinds, self.runs, strict=True)):
            for node in run:
                at = self.places[node]
                devices += [self._device(device, node) for device in kind.devices]
                switches += [Switch(at[switch], node) for switch in kind.switches]
                memories = tuple(dict.fromkeys(at[device.memory] for device in kind.devices))
                routes = [[at[vertex] for vertex in route] for route in kind.routes]
                nodes.append(Node(number, memories, routes))
            self._add_inner(kind, run)
        for link in machine.network_links:
            self._add_outer(link)
        torus = None if machine.torus is None else self._torus(machine.torus)
        spans = sorted(set(map(self._span, machine.network_switches)))
        by_nodes = NodeRoutes(nodes, self.wires, [s for s in spans if s < len(nodes)], torus)
        switches += [Switch(name) for name in self._network_switches()]
        return Topology(
            machine.name,
            sorted(devices, key=lambda device: device.kind),  # as `Devices.of` counts them
            self.links,
            switches,
            by_nodes=by_nodes,
            description=machine.description,
            where=machine.where,
        )

    def _add_inner(self, kind: NodeKind, run: range) -> None:
        """The links in nodes of a kind, node by node."""
        links: list[list[Link]] = [[] for _ in kind.links]
        for node in run:
            at = self.places[node]
            for wire, (a, b, type_) in zip(links, kind.links, strict=True):
                wire.append(self._link(at[a], at[b], type_))
                self.links.append(wire[-1])
        self.wires += [Wire(wire, run, 1) for wire in links]

    def _add_outer(self, link: tuple[str, str, str]) -> None:
        """A link of the network: for each node that has its end, or for each switch."""
        *ends, type_ = link
        inside = [end for end in ends if end not in self.machine.network_switches]
        if not inside:
            span = min(map(self._span, ends))
            everything = range(len(self.places))
            self._add_wire([(ends, node) for node in everything[::span]], everything, span, type_)
        for run in self.runs if inside else ():
            if all(end in self.places[run.start] for end in inside):
                self._add_wire([(ends, node) for node in run], run, 1, type_)

    def _add_wire(
        self, ends: Sequence[tuple[Sequence[str], int]], nodes: range, span: int, type_: str
    ) -> None:
        links = [
            self._link(self._vertex(a, node), self._vertex(b, node), type_) for (a, b), node in ends
        ]
        self.links += links
        self.wires.append(Wire(links, nodes, span))

    def _vertex(self, end: str, node: int) -> str:
        """What an end of a network's link is called, of a node."""
        if end not in self.machine.network_switches:
            return self.places[node][end]
        if self.machine.network_switches[end] is None:
            return end
        return f"{end}:{node // self._span(end)}"

    def _span(self, switch: str) -> int:
        """How many nodes share a switch of the network."""
        its = self.machine.network_switches[switch]
        return len(self.places) if its is None else min(its, len(self.places))

    def _network_switches(self) -> Iterator[str]:
        for name in self.machine.network_switches:
            for node in range(0, len(self.places), self._span(name)):
                yield self._vertex(name, node)

    def _torus(self, grid: Grid) -> Torus:
        """Its links are no wires: a way over them is not that of any two nodes."""
        count = len(self.places)
        links: list[list[Link | None]] = []
        switch = [at[grid.switch] for at in self.places]
        for dimension, extent in enumerate(grid.shape):
            stride = prod(grid.shape[dimension + 1 :])
            wraps = extent == grid.whole[dimension] and extent > 2
            row: list[Link | None] = []
            for node in range(count):
                last = node // stride % extent == extent - 1
                if last and not wraps:
                    row.append(None)
                    continue
                beyond = node - (extent - 1) * stride if last else node + stride
                row.append(self._link(switch[node], switch[beyond], grid.link))
            links.append(row)
            self.links += [link for link in row if link is not None]
        return Torus(switch, grid.shape, links)

    def _device(self, device: NodeDevice, node: int) -> Device:
        type_ = self.machine.device_types[device.type]
        at = self.places[node]
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
        type_ = self.machine.link_types[kind]
        name = f"{kind} {a} - {b}"
        return Link(name, kind, a, b, type_.bandwidth, type_.latency_ns, type_.shared)
