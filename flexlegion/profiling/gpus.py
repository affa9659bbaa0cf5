"""GPUs of this run: what they are, what they can reach, and what they compute with.

Peak rates follow from the number of multiprocessors, the highest clock, and what a multiprocessor
of that compute capability does in a clock, which vendors publish.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path

from flexlegion.bindings import native
from flexlegion.machine.running import RunningMachine, all_gather, running_machine
from flexlegion.objective.precision import DEFAULT, in_library
from flexlegion.profiling.timing import kernel_library

# Multiply-adds that a multiprocessor does in a clock: (float32, tfloat32, bfloat16, float16), dense
# ones, sums in float32; 0: it has no instructions for it. Sources: float32 from the table
# "Throughput of Native Arithmetic Instructions" of NVIDIA's CUDA C++ Programming Guide; tensor
# cores from the architectures' white papers (V100, T4: 512; A100: 512 and 1024; GA102 of data
# centres, AD102: 256 and 512; H100: 1024 and 2048) and, for 10.0 and 12.0, from the rates,
# multiprocessors and clocks of the B200's and RTX 5090's data sheets. Capabilities that are not
# listed count as the last one before them.
PER_CLOCK: Mapping[tuple[int, int], tuple[int, int, int, int]] = {
    (3, 0): (192, 0, 0, 0),
    (5, 0): (128, 0, 0, 0),
    (6, 0): (64, 0, 0, 0),
    (6, 1): (128, 0, 0, 0),
    (7, 0): (64, 0, 0, 512),
    (8, 0): (64, 512, 1024, 1024),
    (8, 6): (128, 256, 512, 512),
    (9, 0): (128, 1024, 2048, 2048),
    (10, 0): (128, 2048, 4096, 4096),
    (12, 0): (128, 128, 256, 256),
}
NAMES = ("float32", "tfloat32", "bfloat16", "float16")
_DRIVER = Path("/proc/driver/nvidia/version")
_TEXT_BYTES = 512  # of a GPU's description, when ranks exchange them


@dataclass(frozen=True)
class Gpu:
    """What a GPU is.

    Parameters
    ----------
    name
        ``NVIDIA H200``.
    software
        The libraries it computes with, and the driver, with versions.
    major, minor
        Its compute capability.
    multiprocessors
        How many.
    clock_khz, memory_clock_khz
        The highest; 0 if the driver does not tell.
    memory_bus_bits
        The memory's width.
    """

    name: str
    software: str
    major: int
    minor: int
    multiprocessors: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int

    @property
    def peak_flops(self) -> dict[str, int]:
        """Operations a second in each precision that it has; none if its clock is not known."""
        known = [capability for capability in PER_CLOCK if capability <= (self.major, self.minor)]
        if not known or self.clock_khz == 0:
            return {}
        rate = 2 * self.multiprocessors * self.clock_khz * 1000
        rates = zip(NAMES, PER_CLOCK[max(known)], strict=True)
        return {name: rate * number for name, number in rates if number}

    @property
    def memory_bandwidth(self) -> int:
        """Bytes a second: two transfers a clock; 0 if that is not known."""
        return 2 * self.memory_clock_khz * 1000 * self.memory_bus_bits // 8


@dataclass(frozen=True)
class Gpus:
    """The GPUs of all ranks.

    Parameters
    ----------
    of
        By the device's number.
    peers
        Pairs of them, of one rank each, that reach each other's memory without the host, and the
        class of the way: pairs of a class are taken to be alike.
    """

    of: Mapping[int, Gpu]
    peers: Mapping[tuple[int, int], int]


def driver() -> str:
    """The version of NVIDIA's driver; ``unknown`` if it does not say."""
    try:
        found = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", _DRIVER.read_text())
    except OSError:
        found = None
    return found[1] if found else "unknown"


@functools.cache
def running_gpus() -> Gpus:
    """Those of this run. Every rank calls it at the same time."""
    machine = running_machine()
    gpus = [i for i, name in enumerate(machine.devices.names) if name.startswith("gpu:")]
    if not gpus:
        return Gpus({}, {})
    most = max(Counter(machine.owners[i] for i in gpus).values())
    mine = [i for i in gpus if machine.owners[i] == machine.rank]
    described = {i: _described(i, len(machine.owners)) for i in mine}
    texts = [json.dumps(asdict(gpu)).encode().ljust(_TEXT_BYTES) for gpu, _ in described.values()]
    ways = [min(255, described[a][1][b]) for a, b in permutations(mine, 2)]
    parts = all_gather(b"".join(texts).ljust(most * _TEXT_BYTES) + bytes(ways).ljust(most * most))
    found: dict[int, Gpu] = {}
    peers: dict[tuple[int, int], int] = {}
    for rank, part in enumerate(parts):
        theirs = [i for i in gpus if machine.owners[i] == rank]
        for k, i in enumerate(theirs):
            found[i] = Gpu(**json.loads(part[k * _TEXT_BYTES : (k + 1) * _TEXT_BYTES]))
        for pair, way in zip(permutations(theirs, 2), part[most * _TEXT_BYTES :], strict=False):
            if way:
                peers[pair] = way
    return Gpus(found, peers)


def _described(device: int, devices: int) -> tuple[Gpu, list[int]]:
    """What a GPU is, and the class of its way to each of so many devices."""
    rt = native.rt()
    out, ways = rt.ffi.new("fl_gpu *"), rt.ffi.new("int32_t[]", devices)
    rt.check(rt.lib.fl_rt_gpu(device, out, ways))
    name, software = (rt.ffi.string(text).decode() for text in (out.name, out.software))
    gpu = Gpu(
        name,
        f"{software}, driver {driver()}",
        out.major,
        out.minor,
        out.multiprocessors,
        out.clock_khz,
        out.memory_clock_khz,
        out.memory_bus_bits,
    )
    return gpu, list(ways)


def library_of(device: int, precision: str = DEFAULT) -> str:
    """What the profile data base calls that with which a device of this run computes.

    Parameters
    ----------
    device
        Its number.
    precision
        Of GPUs: one of `flexlegion.objective.precision.PRECISIONS`.
    """
    gpu = running_gpus().of.get(device)
    return kernel_library() if gpu is None else in_library(gpu.software, precision)


def libraries(machine: RunningMachine, models: Mapping[str, str], precision: str) -> dict[str, str]:
    """`library_of` for every model of device.

    Parameters
    ----------
    machine
        This run's.
    models
        The model of each device, by name.
    precision
        Of GPUs.
    """
    found: dict[str, str] = {}
    for name, model in models.items():
        if model not in found:
            found[model] = library_of(machine.devices.number(name), precision)
    return found
