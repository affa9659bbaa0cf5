"""The machine that this program runs on, as Legion found it: the topology called ``local``.

CPU processors of a rank share its memory. Every two ranks of a node are joined by a link; ranks of
different nodes by a network. The rates are measured once and then come from the profile data base:
a processor's peak is the rate of a matrix product of 1024 x 1024 x 1024 by the runtime's own leaf
task, its memory bandwidth that of a sum of gradients of 16 MiB, while all that share its memory do
the same. Links are measured by copies between two tasks of the runtime.
"""

from __future__ import annotations

import platform
import socket
from collections import Counter
from dataclasses import astuple
from itertools import combinations
from pathlib import Path

import numpy as np

from flexlegion.cost.profile_db import DeviceRates, LinkRates, ProfileDB
from flexlegion.cost.timing import (
    Repeats,
    fit_linear,
    kernel_library,
    round_trips,
    sample_of,
    share,
    time_launch,
    time_sum,
    time_task,
)
from flexlegion.devices import Devices
from flexlegion.errors import UserError
from flexlegion.graph import Graph
from flexlegion.ops.dense import Dense
from flexlegion.plan import Plan
from flexlegion.runtime.machine import RunningMachine, running_machine
from flexlegion.soap import ParallelConfig
from flexlegion.strategy import Strategy
from flexlegion.topology import Device, Link, Switch, Topology

_NAME_BYTES = 128  # of a host's and a processor's name, when ranks exchange them
_PATHS = {True: "ranks of a node", False: "nodes"}
# Rates that links are taken to have until they are measured: a copy through shared memory, and
# 10 Gbit/s Ethernet.
_ESTIMATES = {True: LinkRates(5_000_000_000, 5_000), False: LinkRates(1_250_000_000, 30_000)}
_NETWORK = "network"


def cpu_model() -> str:
    """The processor's name, with family, model and stepping: of virtual machines it says little."""
    entries: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            entries.setdefault(key.strip(), value.strip())
    except OSError:
        return platform.processor() or platform.machine() or "unknown"
    numbers = [entries[k] for k in ("cpu family", "model", "stepping") if k in entries]
    name = entries.get("model name") or platform.machine()
    return f"{name} ({'-'.join(numbers)})" if numbers else name


def local_topology(db: ProfileDB | None = None, *, measure: bool = True) -> Topology:
    """Describe the running machine.

    Parameters
    ----------
    db
        Where rates are kept; the user's by default.
    measure
        Whether to measure links that the data base lacks (some seconds); else they are estimated.
        What a processor reaches is measured in any case.

    Returns
    -------
    Topology
        Devices are named as everywhere in this run; its description says what was measured.

    Raises
    ------
    UserError
        If Legion is not running and cannot start: use the legate command.
    """
    try:
        machine = running_machine()
    except UserError as e:
        raise UserError(f"the machine 'local' is the one that Legion finds, but {e}") from None
    if db is None:
        with ProfileDB() as own:
            return _describe(machine, own, measure)
    return _describe(machine, db, measure)


def _describe(machine: RunningMachine, db: ProfileDB, measure: bool) -> Topology:
    hosts, models = _names()
    nodes = {host: i for i, host in enumerate(dict.fromkeys(hosts))}
    library = kernel_library()
    rates = {
        model: _device_rates(machine, models.index(model), model, library, db)
        for model in dict.fromkeys(models)
    }
    names = machine.devices.names
    users = Counter(machine.memories)
    ranks_of = Counter(hosts)

    def memory(i: int) -> str:
        if users[machine.memories[i]] == 1:
            return names[i]
        host = hosts[machine.owners[i]]
        mine = f":{machine.owners[i]}" if ranks_of[host] > 1 else ""
        return f"node:{nodes[host]}/ram{mine}"

    devices = []
    for i, name in enumerate(names):
        rank = machine.owners[i]
        rate = rates[models[rank]]
        devices.append(
            Device(
                name,
                name.partition(":")[0],
                models[rank],
                nodes[hosts[rank]],
                memory(i),
                machine.memory_bytes[i],
                {"float32": rate.peak_flops},
                rate.memory_bandwidth,
            )
        )
    first = {rank: machine.owners.index(rank) for rank in range(machine.ranks)}
    links, how = _links(
        machine, db, hosts, models, first, {r: memory(first[r]) for r in first}, measure
    )
    switches = [Switch(_NETWORK)] if len(nodes) > 1 else []
    return Topology(
        "local",
        devices,
        links,
        switches,
        description=f"{len(names)} processors on {machine.ranks} rank{'s' * (machine.ranks > 1)}; "
        f"rates of processors measured{how}",
    )


def _names() -> tuple[list[str], list[str]]:
    """Host and processor model of every rank."""
    texts = [
        text.encode()[:_NAME_BYTES].ljust(_NAME_BYTES)
        for text in (socket.gethostname(), cpu_model())
    ]
    ranks = share(b"".join(texts))
    hosts = [rank[:_NAME_BYTES].decode(errors="replace").strip() for rank in ranks]
    return hosts, [rank[_NAME_BYTES:].decode(errors="replace").strip() for rank in ranks]


def _device_rates(
    machine: RunningMachine, rank: int, model: str, library: str, db: ProfileDB
) -> DeviceRates:
    """What processors of a model reach, `rank` being the first that has one."""
    known = db.device(model, library)
    rates = DeviceRates(*_agreed(astuple(known) if known else (0, 0, 0), rank))
    if rates.peak_flops == 0:
        rates = _measure_device(machine.devices, machine.owners.index(rank))
    if known is None:
        db.add_device(model, library, rates)
    return rates


def _agreed(known: tuple[int, ...], rank: int) -> list[int]:
    """What that rank's data base knows, or zeros: all ranks have to go on in the same way."""
    told = share(np.asarray(known, np.int64).tobytes())[rank]
    return [int(number) for number in np.frombuffer(told, np.int64)]


def _measure_device(devices: Devices, device: int) -> DeviceRates:
    """The rates that the module's header speaks of."""
    extent, repeats = 1024, Repeats(2, 5, 11, 100_000_000, 0)
    graph = Graph()
    x = graph.add_input("x", (extent, extent), "float32")
    y = graph.add(Dense(extent, use_bias=False), [x], "product")
    strategy = Strategy({"product": ParallelConfig((1, 1), (devices.names[device],))})
    plan = Plan(graph, strategy, devices, y)
    forward = next(i for i, launch in enumerate(plan.launches) if launch.stage == "forward")
    # The shortest times: what else runs meanwhile is not the processor's fault.
    product = min(time_task(plan, forward, 0, repeats=repeats))
    elements = 4 << 20
    total = min(time_sum(device, 2, elements, repeats))
    moved = 5 * 4 * elements  # one slot is copied, the other added to the copy
    return DeviceRates(
        round(2e9 * extent**3 / product),
        round(1e9 * moved / total),
        sample_of(time_launch(device)).time_ns,
    )


def _links(
    machine: RunningMachine,
    db: ProfileDB,
    hosts: list[str],
    models: list[str],
    first: dict[int, int],
    memories: dict[int, str],
    measure: bool,
) -> tuple[list[Link], str]:
    """The links between ranks, and for people, where their rates come from."""
    links, sources = [], []
    rates: dict[bool, LinkRates] = {}
    for a, b in combinations(range(machine.ranks), 2):
        near = hosts[a] == hosts[b]
        if near not in rates:  # measured once for all pairs alike
            rates[near], source = _link_rates(
                db, near, models[a], models[b], first[a], first[b], measure
            )
            sources.append(f"; {_PATHS[near]}: {source}")
        if near:
            rate = rates[near]
            name = f"ranks {memories[a]} - {memories[b]}"
            links.append(
                Link(
                    name, "ranks", memories[a], memories[b], rate.bytes_per_second, rate.latency_ns
                )
            )
    if False in rates:
        for rank in range(machine.ranks):  # two links make the way
            rate = rates[False]
            links.append(
                Link(
                    f"network {memories[rank]} - {_NETWORK}",
                    "network",
                    memories[rank],
                    _NETWORK,
                    rate.bytes_per_second,
                    rate.latency_ns // 2,
                )
            )
    return links, "".join(sources)


def _link_rates(
    db: ProfileDB, near: bool, a: str, b: str, first: int, second: int, measure: bool
) -> tuple[LinkRates, str]:
    path = _PATHS[near]
    known = db.link(path, a, b)
    rates = LinkRates(*_agreed(astuple(known) if known else (0, 0), 0))
    if rates.bytes_per_second == 0:
        if not measure:
            return _ESTIMATES[near], "estimated"
        rates = measure_link(first, second)
    if known is None:
        db.add_link(path, a, b, rates)
    return rates, "measured"


def measure_link(source: int, destination: int) -> LinkRates:
    """Bandwidth and latency between two devices' memories, from timed copies of Legion.

    The bandwidth is the slope of the shortest times over the size, the latency half of what the
    median trip of an empty message takes longer than the same two tasks within one memory.

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
    within = sorted(round_trips(source, source, small))
    extra = trips[0][len(trips[0]) // 2] - within[len(within) // 2]
    return LinkRates(line.bytes_per_second, max(0, extra // 2))
