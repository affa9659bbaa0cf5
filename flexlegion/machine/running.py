"""The machine that the running Legion found."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import shown
from flexlegion.bindings import native
from flexlegion.machine.devices import Devices

NODES = "FLEXLEGION_NODES"


@dataclass(frozen=True)
class RunningMachine:
    """Devices and ranks of this run.

    Parameters
    ----------
    devices
        All processors, on all ranks.
    ranks
        Number of processes.
    rank
        Number of this process.
    owners
        For each device, the rank that owns it.
    memories
        For each device, its memory: the number of the first device that has it.
    memory_bytes
        For each device, the size of its memory.
    threads
        For each device, how many threads compute a task.
    """

    devices: Devices
    ranks: int
    rank: int
    owners: list[int]
    memories: list[int]
    memory_bytes: list[int]
    threads: list[int]


def running_machine() -> RunningMachine:
    """Describe the machine; starts Legion if it is not running.

    Raises
    ------
    UserError
        If legate is not installed.
    """
    rt = native.rt()
    names, owners, memories, sizes = [], [], [], []
    counts = {"cpu": 0, "gpu": 0}
    running = native.running()
    for info in rt.items(running.devices, running.n_devices):
        kind = "gpu" if info.kind == rt.lib.FL_GPU else "cpu"
        names.append(f"{kind}:{counts[kind]}")
        counts[kind] += 1
        owners.append(info.rank)
        memories.append(info.memory)
        sizes.append(info.memory_bytes)
    devices = Devices(names, _nodes(names, native.hosts()))
    return RunningMachine(
        devices, running.ranks, running.rank, owners, memories, sizes, native.threads()
    )


def _nodes(names: Sequence[str], hosts: Sequence[int]) -> list[int]:
    """The number of each device's node: the machine that it is in, or as the environment says.

    With ``FLEXLEGION_NODES=2``, the first half of each kind's devices count as one node, the others
    as another: where parts of one machine are as slow to reach as other machines, say. Where there
    is one of a kind, it is of the first.
    """
    told = os.environ.get(NODES)
    if told is None:
        first = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
        return [first[host] for host in hosts]
    counts = Counter(name.partition(":")[0] for name in names)
    if not told.isdecimal() or not 1 <= int(told) <= max(counts.values()):
        have = " and ".join(f"{n} {kind}s" for kind, n in counts.items())
        raise UserError(
            f"{NODES} has to be a number of nodes to share out {have} to, but is {shown(told)}"
        )
    places = [name.partition(":") for name in names]
    return [int(index) * int(told) // counts[kind] for kind, _, index in places]


@dataclass(frozen=True)
class Traffic:
    """What Legion does with the memories of devices; bytes.

    Parameters
    ----------
    in_use
        Of each device of this rank, by number, what is given out of its memory: the instances of
        all programs, and whatever else lies there.
    copied
        To bring tasks their data, while that was counted.
    between
        Of that, what went from one device's memory to another's, by the two numbers.
    """

    in_use: dict[int, int]
    copied: int
    between: dict[tuple[int, int], int]


def traffic(*, count_copies: bool = False) -> Traffic:
    """What Legion has done until now. Waits for all work.

    Parameters
    ----------
    count_copies
        Whether to count copies from now on, from 0; that is possible on one rank. A trace's first
        run shows its copies.
    """
    rt = native.rt()
    devices = range(native.running().n_devices)
    its = rt.ffi.new("fl_traffic *")
    rt.check(rt.lib.fl_rt_traffic(count_copies, its))
    in_use = rt.items(its.in_use, len(devices))
    between = rt.items(its.between, len(devices) ** 2)
    return Traffic(
        {device: size for device, size in enumerate(in_use) if size >= 0},
        its.copied,
        dict(zip(product(devices, devices), between, strict=True)),
    )


def all_gather(mine: bytes) -> list[bytes]:
    """What each rank gives, in the order of ranks; all give the same number of bytes."""
    rt = native.rt()
    ranks = native.running().ranks
    if ranks == 1 or not mine:  # of nothing, nothing is sent
        return [mine] * ranks
    everything = rt.ffi.new("char[]", len(mine) * ranks)
    rt.check(rt.lib.fl_rt_all_gather(mine, len(mine), everything))
    joined = bytes(rt.ffi.buffer(everything))
    return [joined[rank * len(mine) : (rank + 1) * len(mine)] for rank in range(ranks)]
