"""The device topology D = (D_N, D_E): devices, the links between them, and routes over links.

Section 3.1 of the paper. Two things are added to it: vertices without computation (switches, host
bridges), because devices share the links behind them, and memories, because devices that share one
exchange nothing. A link ends at memories and switches; a route leads from memory to memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from flexlegion.base.errors import UserError
from flexlegion.machine.devices import Devices
from flexlegion.machine.node_routes import NodeRoutes
from flexlegion.machine.parts import Device, Hop, Link, Switch
from flexlegion.machine.routes import check_graph, check_unique


class Topology:
    """All devices, links and routes of a machine.

    `flexlegion.machine.routes.GraphRoutes` says which route leads from one memory to another.

    Parameters
    ----------
    name
        The machine's, for people.
    devices, switches, links
        Vertices and edges.
    routes
        Stated routes: the vertices that each one passes. The way back is stated with it, unless it
        is stated itself.
    by_nodes
        All routes, if they are known by structure; in place of `routes`.
    description
        A line.
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
        by_nodes: NodeRoutes | None = None,
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
        check_unique([device.name for device in devices], "device", self._where)
        check_unique([link.name for link in links], "link", self._where)
        switch_names = [switch.name for switch in switches]
        if by_nodes is None:
            ends = [(link.source, link.destination) for link in links]
            check_graph(self.memories, switch_names, ends, routes, self._where)
            by_nodes = NodeRoutes.of_graph(self.memories, self.links, routes)
        else:
            check_unique([*self.memories, *switch_names], "memory or switch", self._where)
        self.by_nodes = by_nodes
        by_nodes.check_reachable(self._where)

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
        return self._neighbours.get(vertex, {})

    @cached_property
    def _neighbours(self) -> dict[str, dict[str, Hop]]:
        found: dict[str, dict[str, Hop]] = {}
        for link in self.links:
            found.setdefault(link.source, {})[link.destination] = Hop(link)
            found.setdefault(link.destination, {})[link.source] = Hop(link, True)
        return found

    def route(self, source: str, destination: str) -> tuple[Hop, ...]:
        """The hops from one device's memory to another's; none if they share it.

        Raises
        ------
        UserError
            If there is no such device.
        """
        return self.by_nodes.route(self.device(source).memory, self.device(destination).memory)

    def bandwidth(self, source: str, destination: str) -> int | None:
        """Bytes a second of the slowest link between two devices; None within one memory."""
        return min((hop.link.bandwidth for hop in self.route(source, destination)), default=None)

    def latency_ns(self, source: str, destination: str) -> int:
        """The sum of the latencies on the way."""
        return sum(hop.link.latency_ns for hop in self.route(source, destination))
