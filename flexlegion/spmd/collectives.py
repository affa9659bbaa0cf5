"""What collectives take on a machine's links.

All groups of a mesh that differ along the same axes have theirs at the same time, so what one gets
of a link follows from how many use it. A ring passes every device once: each sends what it has got
from the one before it. What counts is the slowest way between two neighbours:

- Inside a node rings go over links that join two devices of the group, as many at once as there are
  (a device's way out is their sum); or else over switches and host bridges, where rings of one
  order are tried, and each link is shared by all who pass it.
- Between nodes each device takes the adapter that is its way out. A group of several devices in a
  node uses the adapters of all of them; devices that share one share its rate.

Bytes of ring algorithms are those of NCCL's "bus bandwidth": (n - 1) / n of the size for an
all-gather, twice that for an all-reduce. An all-reduce of several nodes may go by a tree as well,
which is faster where latency counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from flexlegion.cost.efficiency import efficiency_of
from flexlegion.machine.parts import Hop
from flexlegion.machine.topology import Topology
from flexlegion.spmd.layout import Collective
from flexlegion.spmd.program import Stage


@dataclass(frozen=True)
class Library:
    """What a library of collectives reaches.

    Parameters
    ----------
    inside, between
        Share of the links' rates that large messages get, inside a node and between nodes.
    start_ns
        What every collective takes: a kernel is launched, and all devices wait for each other.
    step_inside_ns, step_between_ns
        What each step of a ring or tree takes beside the links' own latency.
    channels
        Blocks of its kernel for each ring, each of which takes a multiprocessor.
    taken
        Share of a GPU whose multiprocessors are not known that computes nothing meanwhile.
    """

    inside: float = 0.8
    between: float = 0.9
    start_ns: int = 12_000
    step_inside_ns: int = 1_500
    step_between_ns: int = 5_000
    channels: int = 0
    taken: float = 0.0


# nccl-tests on 8 A100: 235 GB/s of 300, on 8 H200 (without NVLink SHARP) 360 of 450; between nodes
# with an adapter a GPU 85 to 95 % of it (stas00/ml-engineering, "Network"). Latencies of steps as
# NCCL's own tuning model has them for its low-latency protocols (src/graph/tuning.cc). Its kernel
# has two blocks a ring (src/graph/connect.cc). Inside a node there are as many rings as the links
# have room for (search.cc, and `Efficiency.ring_bandwidth`): 24 blocks on an A100 or H100, 12 on a
# V100 of a DGX-1. Between nodes there is one for each adapter. taken: 24 of an H100's 132
# multiprocessors; training there was measured to compute 19 % slower on average (arXiv 2507.03114).
NCCL = Library(channels=2, taken=0.18)


@dataclass(frozen=True)
class Ring:
    """What groups of devices get while all of them have a collective.

    Parameters
    ----------
    devices, nodes
        How many are in a group, and on how many nodes.
    inside, between
        Bytes a second of each device's way to its neighbour in the node, and of a group's way out
        of a node; infinite where there is none.
    adapters
        By which a group leaves a node.
    """

    devices: int
    nodes: int
    inside: float
    between: float
    adapters: int = 0

    @property
    def bandwidth(self) -> float:
        """Of the whole ring."""
        return min(self.inside, self.between)


class Collectives:
    """Times of collectives on a machine.

    Parameters
    ----------
    topology
        The machine.
    library
        What carries them out.
    """

    def __init__(self, topology: Topology, library: Library = NCCL) -> None:
        self.topology = topology
        self.library = library
        self._rings: dict[tuple[Stage, tuple[int, ...]], Ring] = {}
        self._names = [device.name for device in topology.devices]
        self._nodes = [device.node for device in topology.devices]

    def time_ns(self, name: Collective, size: int, stage: Stage, along: tuple[int, ...]) -> int:
        """What a collective takes along axes of a stage's mesh.

        Parameters
        ----------
        name
            Which one.
        size
            Bytes of what a device has before a reduce-scatter, all-reduce or all-to-all, or after
            an all-gather.
        stage, along
            Where.
        """
        ring = self.ring(stage, along)
        if ring.devices == 1:
            return 0
        library, share = self.library, (ring.devices - 1) / ring.devices
        step_in, step_out = library.step_inside_ns, library.step_between_ns
        if name == "all-to-all":
            return (
                library.start_ns
                + round(1e9 * self._exchange(ring, size))
                + step_out * (ring.nodes > 1)
            )
        bytes_each = share * size * (2 if name == "all-reduce" else 1)
        seconds = bytes_each / ring.bandwidth
        steps = (ring.devices - ring.nodes) * step_in + (ring.nodes > 1) * ring.nodes * step_out
        if name == "all-reduce":
            tree = 2 * (
                math.log2(ring.nodes) * step_out + (ring.devices / ring.nodes - 1) * step_in
            )
            steps = min(2 * steps, round(tree)) if ring.nodes > 1 else 2 * steps
        return library.start_ns + round(steps + 1e9 * seconds)

    def taken(self, stage: Stage, along: tuple[int, ...]) -> float:
        """Share of a device that computes nothing while it has a collective along these axes."""
        ring, library = self.ring(stage, along), self.library
        efficiency = efficiency_of(self.topology.devices[stage.devices[0]])
        if not (library.channels and efficiency.multiprocessors and efficiency.ring_bandwidth):
            return library.taken
        rings = ring.adapters
        if ring.nodes == 1 and ring.devices > 1:
            rings = max(1, int(ring.inside / efficiency.ring_bandwidth))
        return min(0.5, library.channels * rings / efficiency.multiprocessors)

    def _exchange(self, ring: Ring, size: int) -> float:
        """Seconds in which each device sends each other one of its group its part."""
        in_node = ring.devices // ring.nodes
        inside = (in_node - 1) / ring.devices * size / ring.inside
        leaving = (ring.devices - in_node) / ring.devices * size * in_node
        return max(inside, leaving / ring.between)

    def send_ns(self, size: int, pairs: Sequence[tuple[int, int]]) -> int:
        """What it takes if each of these pairs sends so many bytes at the same time."""
        used: Counter[str] = Counter()
        routes = [self.topology.route(self._names[a], self._names[b]) for a, b in pairs if a != b]
        for route in routes:
            used.update(hop.channel for hop in route)
        seconds = max(
            (
                size * used[hop.channel] / (hop.link.bandwidth * self._share(hop))
                for route in routes
                for hop in route
            ),
            default=0.0,
        )
        return self.library.start_ns + round(1e9 * seconds) if routes else 0

    def _share(self, hop: Hop) -> float:
        return self.library.between if self._leaves(hop) else self.library.inside

    def ring(self, stage: Stage, along: tuple[int, ...]) -> Ring:
        """What the groups along these axes get."""
        ring = self._rings.get((stage, along))
        if ring is None:
            ring = self._rings[stage, along] = self._ring(stage.groups(along))
        return ring

    def _ring(self, groups: Sequence[Sequence[int]]) -> Ring:
        by_node = [self._by_node(group) for group in groups]
        nodes = max(map(len, by_node))
        in_node: dict[int, list[list[int]]] = {}
        for group in by_node:
            for node, members in group.items():
                in_node.setdefault(node, []).append(members)
        # Nodes are alike: what the first, and what the fullest one has, is what all have.
        fullest = max(in_node.values(), key=lambda its: (len(its), sum(map(len, its))))
        inside = self._inside(fullest) * self.library.inside
        between, adapters = math.inf, 0
        if nodes > 1:
            node = next(n for n, its in in_node.items() if its is fullest)
            other = next(
                members[0]
                for group in by_node
                for n, members in group.items()
                if n != node and len(group) > 1
            )
            between = self._outside(fullest, other) * self.library.between
            adapters = min(
                len({self._exit(device, other).channel for device in group}) for group in fullest
            )
        return Ring(len(groups[0]), nodes, inside, between, adapters)

    def _by_node(self, group: Sequence[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for device in group:
            found.setdefault(self._nodes[device], []).append(device)
        return found

    def _inside(self, groups: Sequence[Sequence[int]]) -> float:
        """Of a device's way to its neighbour, for groups inside a node; the slowest of them."""
        groups = [group for group in groups if len(group) > 1]
        if not groups:
            return math.inf
        return max(self._by_links(groups), self._by_switches(groups))

    def _by_links(self, groups: Sequence[Sequence[int]]) -> float:
        """Over links that join two devices; 0 if a device has none to another of its group."""
        slowest = math.inf
        for group in groups:
            for device in group:
                ways = (self._hops(device, other) for other in group if other != device)
                total = sum(way[0].link.bandwidth for way in ways if len(way) == 1)
                slowest = min(slowest, total)
        return slowest

    def _by_switches(self, groups: Sequence[Sequence[int]]) -> float:
        """By routes between neighbours in the order of the devices, which share links."""
        routes = [
            self._hops(device, group[at - 1]) for group in groups for at, device in enumerate(group)
        ]
        used = Counter(hop.channel for route in routes for hop in route)
        return min(
            (hop.link.bandwidth / used[hop.channel] for route in routes for hop in route),
            default=math.inf,
        )

    def _outside(self, groups: Sequence[Sequence[int]], other: int) -> float:
        """Of a group's way out of a node, whose adapters its groups share; the slowest of them."""
        ways = [[self._exit(device, other) for device in group] for group in groups]
        users = Counter(name for way in ways for name in {hop.channel for hop in way})
        return min(
            sum(
                rate / users[name]
                for name, rate in {hop.channel: hop.link.bandwidth for hop in way}.items()
            )
            for way in ways
        )

    def _exit(self, device: int, other: int) -> Hop:
        """Where the way from a device to one of another node leaves its node."""
        return next(hop for hop in self._hops(device, other) if self._leaves(hop))

    def _hops(self, one: int, other: int) -> tuple[Hop, ...]:
        return self.topology.route(self._names[one], self._names[other])

    def _leaves(self, hop: Hop) -> bool:
        """Whether a hop leads out of a node, or into one."""
        return self._node_of.get(hop.source) != self._node_of.get(hop.destination)

    @cached_property
    def _node_of(self) -> dict[str, int | None]:
        """The node of each vertex; None in the network."""
        nodes: dict[str, int | None] = {its.name: its.node for its in self.topology.switches}
        return nodes | {device.memory: device.node for device in self.topology.devices}
