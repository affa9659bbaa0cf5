"""What joins the memories of the running machine, and at which rates.

Every two ranks of a node are joined by a link; ranks of different nodes by a network. A GPU's
memory is joined to the host's of its rank, and to those of the GPUs that it reaches without the
host; elsewhere the way leads through the hosts. Rates are those of copies between two tasks of the
runtime, measured once for each kind of link and then kept in the profile data base, under what
they depend on: the kind, the devices at the ends, and, between ranks, what `transport` tells.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import combinations

import numpy as np

from flexlegion.base.errors import UserError
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.cost.records import LinkRates
from flexlegion.machine.parts import Link, Switch
from flexlegion.machine.running import RunningMachine, all_gather, running_machine
from flexlegion.profiling import transport
from flexlegion.profiling.gpus import running_gpus
from flexlegion.profiling.timing import fit_linear, round_trips

_RANKS, _NODES, _HOST = "ranks of a node", "nodes", "GPU and host"
_PEERS, _GPU_RANKS = "GPUs of a rank, class", "GPUs of a node's ranks"
# Rates that links are taken to have until they are measured: a copy through shared memory,
# 10 Gbit/s Ethernet; all links of GPUs: PCIe 4.0 with 16 lanes.
_ESTIMATES = {
    _RANKS: (5_000_000_000, 5_000),
    _NODES: (1_250_000_000, 30_000),
}
_PCIE = (24_000_000_000, 10_000)
_NETWORK = "network"
_BOTH_WAYS = "; both ways"  # of a path in the data base: rates while both directions are in use
# A link whose directions together carry less than this times what one alone does is one for both.
_TWO_WAYS = 1.5
# Messages that are measured, and how many of each; larger ones only while they are fast.
_SMALL = 4
_TRIPS = {_SMALL: 64, 1 << 20: 32, 4 << 20: 32, 16 << 20: 16, 64 << 20: 8}
_SLOW_NS = 50_000_000


@dataclass(frozen=True)
class Rates:
    """What a link does.

    Parameters
    ----------
    bytes_per_second
        Of one direction, or of both together.
    latency_ns
        What a task waits for an empty message.
    shared
        Whether its directions share the rate.
    """

    bytes_per_second: int
    latency_ns: int
    shared: bool = False


def rates_of(alone: LinkRates, both_ways: LinkRates) -> Rates:
    """A link's rates, from those of one direction alone and of each while both are in use."""
    together = 2 * both_ways.bytes_per_second
    if together < _TWO_WAYS * alone.bytes_per_second:
        return Rates(together, alone.latency_ns, True)
    return Rates(alone.bytes_per_second, alone.latency_ns)


# What links a device's memory to another's: the kind of the way, and the devices' numbers.
Rate = Callable[[str, int, int], Rates]


@dataclass(frozen=True)
class Layout:
    """Where devices and memories are.

    Parameters
    ----------
    machine
        Devices, and the ranks that own them.
    models
        Of each device.
    nodes
        For each device, the number of its node.
    memories
        For each device, its memory's name.
    hosts
        For each rank, the device whose memory is the host's.
    peers
        Pairs of GPUs that reach each other's memory without the host: the class of the way.
    """

    machine: RunningMachine
    models: Sequence[str]
    nodes: Sequence[int]
    memories: Sequence[str]
    hosts: Sequence[int]
    peers: Mapping[tuple[int, int], int]


@dataclass
class Joined:
    """Links, switches and stated routes, as `Topology` takes them."""

    links: list[Link] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    routes: list[tuple[str, ...]] = field(default_factory=list)


def layout_of(
    machine: RunningMachine,
    hosts: Sequence[str],
    models: Sequence[str],
    peers: Mapping[tuple[int, int], int],
) -> Layout:
    """Name the nodes and memories of a machine.

    Parameters
    ----------
    machine
        What Legion found.
    hosts
        Each rank's host name.
    models
        Each device's model.
    peers
        As `Layout.peers`.
    """
    numbers = {host: i for i, host in enumerate(dict.fromkeys(hosts))}
    nodes = [numbers[hosts[owner]] for owner in machine.owners]
    users, ranks = Counter(machine.memories), Counter(hosts)
    names = machine.devices.names

    def memory(i: int) -> str:
        if users[machine.memories[i]] == 1:
            return names[i]
        mine = f":{machine.owners[i]}" if ranks[hosts[machine.owners[i]]] > 1 else ""
        return f"node:{nodes[i]}/ram{mine}"

    # Devices are counted from the CPU processors on, of which each rank has one.
    first = [machine.owners.index(rank) for rank in range(machine.ranks)]
    return Layout(machine, models, nodes, [memory(i) for i in range(len(names))], first, peers)


def joined_by(layout: Layout, rate: Rate) -> Joined:
    """All links of a machine, and the ways of GPUs' data through hosts.

    Parameters
    ----------
    layout
        The machine.
    rate
        Says how fast a link is.
    """
    joined = Joined()
    machine, memories = layout.machine, layout.memories
    hosts = layout.hosts

    def link(kind: str, path: str, a: int, b: int) -> None:
        rates = rate(path, a, b)
        name = f"{kind} {memories[a]} - {memories[b]}"
        joined.links.append(
            Link(
                name,
                kind,
                memories[a],
                memories[b],
                rates.bytes_per_second,
                rates.latency_ns,
                rates.shared,
            )
        )

    apart = [(a, b) for a, b in combinations(hosts, 2) if layout.nodes[a] != layout.nodes[b]]
    for a, b in combinations(hosts, 2):
        if layout.nodes[a] == layout.nodes[b]:
            link("ranks", _RANKS, a, b)
    if apart:
        rates = rate(_NODES, *apart[0])
        joined.switches.append(Switch(_NETWORK))
        for host in hosts:  # two links make the way
            name = f"network {memories[host]} - {_NETWORK}"
            joined.links.append(
                Link(
                    name,
                    "network",
                    memories[host],
                    _NETWORK,
                    rates.bytes_per_second,
                    rates.latency_ns // 2,
                    rates.shared,
                )
            )
    gpus = [i for i, name in enumerate(machine.devices.names) if name.startswith("gpu:")]
    for gpu in gpus:
        link("host", _HOST, hosts[machine.owners[gpu]], gpu)
    linked = set()
    for a, b in combinations(gpus, 2):
        same = machine.owners[a] == machine.owners[b]
        way = layout.peers.get((a, b), 0)
        if same and way:
            link("peers", f"{_PEERS} {way}", a, b)
        elif not same and layout.nodes[a] == layout.nodes[b]:
            link("gpus", _GPU_RANKS, a, b)
        else:
            continue
        linked.add((a, b))
    _add_routes(joined, layout, gpus, linked)
    return joined


def _add_routes(
    joined: Joined, layout: Layout, gpus: Sequence[int], linked: set[tuple[int, int]]
) -> None:
    """State the ways between GPUs and other memories that lead through hosts."""
    owners, memories = layout.machine.owners, layout.memories

    def between(a: int, b: int) -> list[str]:
        """From the host of one device to that of another."""
        first, last = layout.hosts[owners[a]], layout.hosts[owners[b]]
        if first == last:
            return [memories[first]]
        network = [] if layout.nodes[first] == layout.nodes[last] else [_NETWORK]
        return [memories[first], *network, memories[last]]

    for gpu in gpus:
        for host in layout.hosts:
            if owners[host] != owners[gpu]:
                joined.routes.append((memories[gpu], *between(gpu, host)))
    for a, b in combinations(gpus, 2):
        if (a, b) not in linked:
            joined.routes.append((memories[a], *between(a, b), memories[b]))


class MeasuredLinks:
    """The rates of links: the data base's, measured now, or estimated.

    Parameters
    ----------
    layout
        The machine.
    db
        Where rates are kept.
    measure
        Whether to measure what it lacks (some seconds for a kind of link).
    """

    def __init__(self, layout: Layout, db: ProfileDB, measure: bool) -> None:
        self._layout = layout
        self._db = db
        self._measure = measure
        self._known: dict[tuple[str, str, str], Rates] = {}
        self.sources = ""  # for people: where the rates come from

    def __call__(self, path: str, a: int, b: int) -> Rates:
        """The rates between two devices' memories; links of a kind are measured once."""
        models = self._layout.models
        key = (path, models[a], models[b])
        if key not in self._known:
            self._known[key], source = self._rates(path, a, b)
            self.sources += f"; {path}: {source}"
        return self._known[key]

    def _rates(self, path: str, a: int, b: int) -> tuple[Rates, str]:
        ends = self._layout.models[a], self._layout.models[b]
        keys = [self._key(path, a, b) + more for more in ("", _BOTH_WAYS)]
        known = [self._db.link(key, *ends) for key in keys]
        ours = [number for rates in known for number in (astuple(rates) if rates else (0, 0))]
        told = agreed(tuple(ours), 0)
        rates = [LinkRates(*told[:2]), LinkRates(*told[2:])]
        if any(its.bytes_per_second == 0 for its in rates):
            if not self._measure:
                return Rates(*_ESTIMATES.get(path, _PCIE)), "estimated"
            rates = [measure_link(a, b), measure_link(a, b, both_ways=True)]
        for key, its, ours_before in zip(keys, rates, known, strict=True):
            if ours_before is None:
                self._db.add_link(key, *ends, its)
        return rates_of(*rates), "measured"

    def _key(self, path: str, a: int, b: int) -> str:
        """The kind of the way, and what else its rates depend on."""
        layout, gpu = self._layout, running_gpus().of.get(b)
        depends = [path]
        if gpu is not None:  # what copies for GPUs
            depends.append(gpu.software)
        if layout.machine.owners[a] != layout.machine.owners[b]:
            depends.append(transport.software())
        if layout.nodes[a] != layout.nodes[b]:
            depends.append(transport.adapters())
        return "; ".join(depends)


def agreed(known: tuple[int, ...], rank: int) -> list[int]:
    """What that rank's data base knows, or zeros: all ranks have to go on in the same way."""
    told = all_gather(np.asarray(known, np.int64).tobytes())[rank]
    return [int(number) for number in np.frombuffer(told, np.int64)]


def measure_link(source: int, destination: int, *, both_ways: bool = False) -> LinkRates:
    """Bandwidth and latency between two devices' memories, from timed copies of Legion.

    The bandwidth is the slope of the shortest times over the size, the latency half of what the
    median trip of an empty message takes longer than two such tasks within one memory: of two kinds
    of devices, one on each.

    Parameters
    ----------
    source, destination
        The devices' numbers.
    both_ways
        Whether as much travels in the other direction at the same time; then the bandwidth is
        that of median times, as the fastest trips have met nobody.

    Raises
    ------
    UserError
        If the two share a memory, between which there is nothing to measure.
    """
    machine = running_machine()
    if machine.memories[source] == machine.memories[destination]:
        names = machine.devices.names
        raise UserError(
            f"{names[source]} and {names[destination]} share a memory, so nothing is copied "
            "between them; links exist between ranks"
        )
    others = [(destination, source)] if both_ways else []
    trips: dict[int, list[int]] = {}
    for size, number in _TRIPS.items():
        trips[size] = sorted(round_trips(source, destination, size, number, others))
        if len(trips) > 1 and trips[size][0] > _SLOW_NS:  # a line needs two points
            break
    times = [statistics.median_low(its) if both_ways else its[0] for its in trips.values()]
    line = fit_linear([2 * size for size in trips], times)
    kinds = [machine.devices.names[end].partition(":")[0] for end in (source, destination)]
    ends = dict(zip(kinds, (source, destination), strict=True)).values()
    within = [statistics.median_low(round_trips(end, end, _SMALL)) for end in ends]
    extra = statistics.median_low(trips[_SMALL]) - sum(within) // len(within)
    return LinkRates(line.bytes_per_second, max(0, extra // 2))
