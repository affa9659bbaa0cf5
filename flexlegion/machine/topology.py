"""The device topology D = (D_N, D_E): devices, the links between them, and routes over links.

Section 3.1 of the paper. Two things are added to it: vertices without computation (switches, host
bridges), because devices share the links behind them, and memories, because devices that share one
exchange nothing. A link ends at memories and switches; a route leads from memory to memory.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from flexlegion.base.errors import UserError
from flexlegion.machine.devices import Devices
from flexlegion.machine.efficiency import Efficiency


@dataclass(frozen=True)
class Device:
    """A processor that executes tasks.

    Parameters
    ----------
    name
        ``gpu:3`` or ``cpu:0``, counted over all nodes, as in strategies.
    kind
        ``gpu`` or ``cpu``.
    model
        What it is, for people: ``P100``.
    node
        The number of its node.
    memory
        The memory that holds its data. Devices with the same memory need no transfers. A memory
        that only one device has bears the device's name.
    memory_bytes
        Size of the memory.
    peak_flops
        Floating-point operations a second for each precision (``float32``, ...).
    memory_bandwidth
        Bytes a second.
    efficiency
        What share of these rates it reaches; None: nobody said it.
    """

    name: str
    kind: str
    model: str
    node: int
    memory: str
    memory_bytes: int
    peak_flops: Mapping[str, int] = field(hash=False)
    memory_bandwidth: int
    efficiency: Efficiency | None = field(default=None, hash=False)


@dataclass(frozen=True)
class Switch:
    """A vertex without computation: a switch or a host bridge; `node` is None in the network."""

    name: str
    node: int | None = None


@dataclass(frozen=True)
class Link:
    """A connection, an edge of D_E, with the same rate in both directions.

    Parameters
    ----------
    name
        Unique.
    kind
        What it is, for people: ``nvlink``.
    source, destination
        The vertices that it connects: memories or switches.
    bandwidth
        Bytes a second.
    latency_ns
        Nanoseconds.
    shared
        Whether both directions are one communication device, or each is its own.
    """

    name: str
    kind: str
    source: str
    destination: str
    bandwidth: int
    latency_ns: int
    shared: bool = False


@dataclass(frozen=True)
class Hop:
    """One direction of a link."""

    link: Link
    backward: bool = False

    @property
    def source(self) -> str:
        """The vertex that it leads from."""
        return self.link.destination if self.backward else self.link.source

    @property
    def destination(self) -> str:
        """The vertex that it leads to."""
        return self.link.source if self.backward else self.link.destination

    @cached_property
    def channel(self) -> str:
        """The communication device that serves it; a shared link is one for both directions."""
        return self.link.name if self.link.shared else f"{self.source} -> {self.destination}"

    def __invert__(self) -> Hop:
        return Hop(self.link, not self.backward)


class Topology:
    """All devices, links and routes of a machine.

    The route between two memories is the one that is stated, or else the one with the fewest hops;
    among these the highest bottleneck bandwidth; among these the vertices that come first by name
    (numbers in names counting as numbers). Such a route passes through switches only: devices
    forward data where a stated route says so. The way back is the way there.

    Parameters
    ----------
    name
        The machine's, for people.
    devices, switches, links
        Vertices and edges.
    routes
        Stated routes: the vertices that each one passes. The way back is stated with it, unless it
        is stated itself.
    where
        For messages: the file that it comes from.

    Raises
    ------
    UserError
        If names repeat, a link or route does not fit, or devices cannot reach each other.
    """

    def __init__(
        self,
        name: str,
        devices: Sequence[Device],
        links: Sequence[Link],
        switches: Sequence[Switch] = (),
        routes: Sequence[Sequence[str]] = (),
        *,
        description: str = "",
        where: str | None = None,
    ) -> None:
        self.name = name
        self.description = description
        self.devices = tuple(devices)
        self.links = tuple(links)
        self.switches = tuple(switches)
        self._where = where or name
        self._by_name = {device.name: device for device in devices}
        self.memories = tuple(dict.fromkeys(device.memory for device in devices))
        if not devices:
            raise UserError(f"{self._where}: the machine has no device; it needs at least one")
        _unique([device.name for device in devices], "device", self._where)
        _unique([link.name for link in links], "link", self._where)
        ends = [(link.source, link.destination) for link in links]
        switch_names = [switch.name for switch in switches]
        check_graph(self.memories, switch_names, ends, routes, self._where)
        self._neighbours: dict[str, dict[str, Hop]] = {
            name: {} for name in (*self.memories, *switch_names)
        }
        for link in links:
            self._neighbours[link.source][link.destination] = Hop(link)
            self._neighbours[link.destination][link.source] = Hop(link, True)
        self._forwarding = set(switch_names)
        self._rank = {name: i for i, name in enumerate(sorted(self.memories, key=_natural))}
        self._last_hops: tuple[str, dict[str, list[Hop]]] = ("", {})
        self._routes: dict[tuple[str, str], tuple[Hop, ...]] = {}
        for route in routes:
            self._routes[route[0], route[-1]] = self._hops(route)
        for route in routes:
            self._routes.setdefault((route[-1], route[0]), self._hops(route[::-1]))
        self._check_reachable()

    def device(self, name: str) -> Device:
        """The device of that name; `UserError` if there is none."""
        if name not in self._by_name:
            raise UserError(f"{self._where}: no device '{name[:40]}'; the machine has {self.names}")
        return self._by_name[name]

    @cached_property
    def names(self) -> Devices:
        """The names of its devices, as strategies and the plan count them."""
        return Devices(
            [device.name for device in self.devices], [device.node for device in self.devices]
        )

    @cached_property
    def nodes(self) -> int:
        """How many nodes it has."""
        return 1 + max(device.node for device in self.devices)

    @cached_property
    def channels(self) -> tuple[str, ...]:
        """All communication devices, in the order of links; see `Hop.channel`."""
        hops = (hop for link in self.links for hop in (Hop(link), Hop(link, True)))
        return tuple(dict.fromkeys(hop.channel for hop in hops))

    def neighbours(self, vertex: str) -> Mapping[str, Hop]:
        """The vertices that a memory or switch is linked to, and the hops that lead there."""
        return self._neighbours[vertex]

    def route(self, source: str, destination: str) -> tuple[Hop, ...]:
        """The hops from one device's memory to another's; none if they share it.

        Raises
        ------
        UserError
            If there is no such device.
        """
        a, b = self.device(source).memory, self.device(destination).memory
        if a == b:
            return ()
        if (a, b) in self._routes:
            return self._routes[a, b]
        if self._rank[a] < self._rank[b]:
            route = self._routes[a, b] = self._shortest(a, b)
            return route
        if (b, a) not in self._routes:
            self._routes[b, a] = self._shortest(b, a)
        return tuple(
            self._neighbours[hop.destination][hop.source] for hop in reversed(self._routes[b, a])
        )

    def bandwidth(self, source: str, destination: str) -> int | None:
        """Bytes a second of the slowest link between two devices; None within one memory."""
        return min((hop.link.bandwidth for hop in self.route(source, destination)), default=None)

    def latency_ns(self, source: str, destination: str) -> int:
        """The sum of the latencies on the way."""
        return sum(hop.link.latency_ns for hop in self.route(source, destination))

    def _hops(self, vertices: Sequence[str]) -> tuple[Hop, ...]:
        return tuple(self._neighbours[a][b] for a, b in pairwise(vertices))

    def _last_hops_from(self, source: str) -> dict[str, list[Hop]]:
        """For each vertex, the last hops of all ways with the fewest hops from `source`.

        A breadth-first search. That of the last source is kept: the routes from one memory to all
        others take one search.
        """
        if self._last_hops[0] == source:
            return self._last_hops[1]
        distance = {source: 0}
        last: dict[str, list[Hop]] = {source: []}
        queue = deque([source])
        while queue:
            vertex = queue.popleft()
            if vertex != source and vertex not in self._forwarding:
                continue
            beyond = distance[vertex] + 1
            for neighbour, hop in self._neighbours[vertex].items():
                if neighbour not in distance:
                    distance[neighbour] = beyond
                    last[neighbour] = [hop]
                    queue.append(neighbour)
                elif distance[neighbour] == beyond:
                    last[neighbour].append(hop)
        self._last_hops = source, last
        return last

    def _shortest(self, source: str, destination: str) -> tuple[Hop, ...]:
        """Fewest hops, then highest bottleneck bandwidth, then first by name.

        All ways with the fewest hops are followed backwards, level by level, which tells how wide
        the rest of the way can be from each vertex; then the best one forwards.
        """
        last = self._last_hops_from(source)
        path: list[Hop] = []
        vertex = destination
        while vertex != source and len(last[vertex]) == 1:
            path.append(last[vertex][0])
            vertex = path[-1].source
        if vertex == source:
            return tuple(path[::-1])  # there is but one
        width: dict[str, float] = {destination: float("inf")}
        onward: dict[str, list[Hop]] = {}
        level = [destination]
        while level != [source]:
            nearer: dict[str, float] = {}
            for vertex in level:
                for hop in last[vertex]:
                    onward.setdefault(hop.source, []).append(hop)
                    wide = min(width[vertex], hop.link.bandwidth)
                    nearer[hop.source] = max(wide, nearer.get(hop.source, 0.0))
            width |= nearer
            level = list(nearer)
        path, vertex = [], source
        while vertex != destination:
            wide_enough = [
                hop
                for hop in onward[vertex]
                if min(hop.link.bandwidth, width[hop.destination]) >= width[source]
            ]
            if len(wide_enough) > 1:
                wide_enough.sort(key=lambda hop: _natural(hop.destination))
            path.append(wide_enough[0])
            vertex = path[-1].destination
        return tuple(path)

    def _check_reachable(self) -> None:
        """Raise `UserError` unless there is a route between all memories.

        Sets of memories are bits of integers, so that thousands of devices take no time.
        """
        bit = {memory: 1 << i for i, memory in enumerate(self.memories)}
        reach = dict(bit)
        seen: set[str] = set()
        for start in self.switches:
            if start.name in seen:
                continue
            seen.add(start.name)
            queue, members = deque([start.name]), set()
            while queue:
                for neighbour in self._neighbours[queue.popleft()]:
                    if neighbour in bit:
                        members.add(neighbour)
                    elif neighbour not in seen:
                        seen.add(neighbour)
                        queue.append(neighbour)
            together = sum(bit[memory] for memory in members)
            for memory in members:
                reach[memory] |= together
        for memory in self.memories:
            for neighbour in self._neighbours[memory]:
                reach[memory] |= bit.get(neighbour, 0)
        for a, b in self._routes:
            reach[a] |= bit[b]
        everything = (1 << len(bit)) - 1
        for memory in self.memories:
            if reach[memory] != everything:
                other = next(m for m in self.memories if not reach[memory] & bit[m])
                raise UserError(
                    f"{self._where}: no route from {memory} to {other}; connect them by a link, by "
                    "switches that are linked, or by a stated route, for devices do not forward "
                    "the data of others by themselves"
                )


def check_graph(
    memories: Iterable[str],
    switches: Iterable[str],
    links: Sequence[tuple[str, str]],
    routes: Sequence[Sequence[str]],
    where: str,
) -> None:
    """Raise `UserError` unless links and stated routes fit their vertices.

    Used for a whole machine, and for the node that a machine file describes.
    """
    memories = list(memories)
    vertices = [*memories, *switches]
    _unique(vertices, "memory or switch", where)
    known = set(vertices)
    own = set(memories)
    linked: set[tuple[str, str]] = set()
    for a, b in links:
        place = f"{where}: link {a} - {b}"
        _known([a, b], known, vertices, place)
        if a == b:
            raise UserError(f"{place}: leads back to where it starts; name two different ends")
        if (a, b) in linked:
            raise UserError(f"{place}: occurs twice; give one link, with the sum of the bandwidths")
        linked |= {(a, b), (b, a)}
    ends = set()
    for route in routes:
        place = f"{where}: route {' - '.join(route[:8])}{' ...' * (len(route) > 8)}"
        if len(route) < 2:
            raise UserError(f"{place}: has to name at least the two devices that it connects")
        _known(route, known, vertices, place)
        if len(set(route)) < len(route):
            again = next(v for i, v in enumerate(route) if v in route[:i])
            raise UserError(
                f"{place}: is cyclic, for it passes {again} twice; name each vertex once"
            )
        for end in (route[0], route[-1]):
            if end not in own:
                raise UserError(
                    f"{place}: ends at the switch {end}; a route leads from a device to a device"
                )
        for a, b in pairwise(route):
            if (a, b) not in linked:
                raise UserError(
                    f"{place}: is broken, for no link connects {a} and {b}; add the link, or "
                    "name the vertices between them"
                )
        if (route[0], route[-1]) in ends:
            raise UserError(
                f"{place}: is the second route from {route[0]} to {route[-1]}; keep one"
            )
        ends.add((route[0], route[-1]))


def _known(names: Iterable[str], known: set[str], vertices: Sequence[str], place: str) -> None:
    for name in names:
        if name not in known:
            more = f" and {len(vertices) - 12} more" if len(vertices) > 12 else ""
            raise UserError(
                f"{place}: unknown endpoint '{name}'; the choices are "
                f"{', '.join(vertices[:12])}{more}"
            )


def _unique(names: Sequence[str], what: str, where: str) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise UserError(f"{where}: the name {name} stands for more than one {what}; rename one")
        seen.add(name)


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """A sorting key by which ``gpu:2`` comes before ``gpu:10``."""
    parts = re.findall(r"(\D*)(\d*)", name)
    return tuple((text, int(number or -1)) for text, number in parts)
