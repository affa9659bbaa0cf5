"""What joins the memories of the running machine, and at which rates.

Every two ranks of a node are joined by a link; ranks of different nodes by a network. A GPU's
memory is joined to the host's of its rank, and to those of the GPUs that it reaches without the
host; elsewhere the way leads through the hosts. Rates are those of copies between two tasks of the
runtime, measured once for each kind of link and then kept in the profile data base.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import combinations

import numpy as np

from flexlegion.cost.profile_db import LinkRates, ProfileDB
from flexlegion.cost.timing import fit_linear, round_trips, share
from flexlegion.errors import UserError
from flexlegion.gpus import running_gpus
from flexlegion.runtime.machine import RunningMachine, running_machine
from flexlegion.topology import Link, Switch

_RANKS, _NODES, _HOST = "ranks of a node", "nodes", "GPU and host"
_PEERS, _GPU_RANKS = "GPUs of a rank, class", "GPUs of a node's ranks"
# Rates that links are taken to have until they are measured: a copy through shared memory,
# 10 Gbit/s Ethernet; all links of GPUs: PCIe 4.0 with 16 lanes.
_ESTIMATES = {
    _RANKS: LinkRates(5_000_000_000, 5_000),
    _NODES: LinkRates(1_250_000_000, 30_000),
}
_PCIE = LinkRates(24_000_000_000, 10_000)
_NETWORK = "network"

# What links a device's memory to another's: the kind of the way, and the devices' numbers.
Rate = Callable[[str, int, int], LinkRates]


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
            Link(name, kind, memories[a], memories[b], rates.bytes_per_second, rates.latency_ns)
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
        self._known: dict[tuple[str, str, str], LinkRates] = {}
        self.sources = ""  # for people: where the rates come from

    def __call__(self, path: str, a: int, b: int) -> LinkRates:
        """The rates between two devices' memories; links of a kind are measured once."""
        models = self._layout.models
        key = (path, models[a], models[b])
        if key not in self._known:
            self._known[key], source = self._rates(path, a, b)
            self.sources += f"; {path}: {source}"
        return self._known[key]

    def _rates(self, path: str, a: int, b: int) -> tuple[LinkRates, str]:
        models = self._layout.models
        gpu = running_gpus().of.get(b)
        # What copies for GPUs depends on their driver and libraries.
        key = path if gpu is None else f"{path}; {gpu.software}"
        known = self._db.link(key, models[a], models[b])
        rates = LinkRates(*agreed(astuple(known) if known else (0, 0), 0))
        if rates.bytes_per_second == 0:
            if not self._measure:
                return _ESTIMATES.get(path, _PCIE), "estimated"
            rates = measure_link(a, b)
        if known is None:
            self._db.add_link(key, models[a], models[b], rates)
        return rates, "measured"


def agreed(known: tuple[int, ...], rank: int) -> list[int]:
    """What that rank's data base knows, or zeros: all ranks have to go on in the same way."""
    told = share(np.asarray(known, np.int64).tobytes())[rank]
    return [int(number) for number in np.frombuffer(told, np.int64)]


def measure_link(source: int, destination: int) -> LinkRates:
    """Bandwidth and latency between two devices' memories, from timed copies of Legion.

    The bandwidth is the slope of the shortest times over the size, the latency half of what the
    median trip of an empty message takes longer than two such tasks within one memory: of two kinds
    of devices, one on each.

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
    small = 4
    sizes = (small, 1 << 20, 4 << 20, 16 << 20)
    trips = [sorted(round_trips(source, destination, size)) for size in sizes]
    line = fit_linear([2 * size for size in sizes], [times[0] for times in trips])
    kinds = [machine.devices.names[end].partition(":")[0] for end in (source, destination)]
    ends = dict(zip(kinds, (source, destination), strict=True)).values()
    within = [statistics.median_low(round_trips(end, end, small)) for end in ends]
    extra = statistics.median_low(trips[0]) - sum(within) // len(within)
    return LinkRates(line.bytes_per_second, max(0, extra // 2))
