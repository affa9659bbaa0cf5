"""The machine that the running Legion found."""

from __future__ import annotations

from dataclasses import dataclass

from flexlegion.bindings import native
from flexlegion.machine.devices import Devices


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
    devices = Devices(names, owners)
    return RunningMachine(
        devices, running.ranks, running.rank, owners, memories, sizes, native.threads()
    )


def memory_in_use(device: int) -> int:
    """Bytes that Legion has given out of the memory of a device of this rank.

    These are the instances of all programs, and whatever else lies there. Waits for all work.
    """
    rt = native.rt()
    return int(rt.check(rt.lib.fl_rt_memory_in_use(device)))


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
