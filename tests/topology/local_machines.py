"""The machine `local`, described from what Legion and CUDA would tell of such a machine."""

from __future__ import annotations

from flexlegion.machine.devices import Devices
from flexlegion.machine.parts import Device
from flexlegion.machine.running import RunningMachine
from flexlegion.machine.topology import Topology
from flexlegion.profiling.gpus import Gpu
from flexlegion.profiling.local_links import Rates, joined_by, layout_of

H200 = Gpu("NVIDIA H200", "cuDNN 9", 9, 0, 132, 1_980_000, 3_201_000, 6144)


def local(ranks: int, cpus: int, gpus: int, hosts: list[str], peers: bool) -> Topology:
    """Ranks of `cpus` processors and `gpus` GPUs each, on these hosts."""
    owners = [r for r in range(ranks) for _ in range(cpus)]
    memories = [r * cpus for r in owners]
    names = [f"cpu:{i}" for i in range(ranks * cpus)] + [f"gpu:{i}" for i in range(ranks * gpus)]
    owners += [r for r in range(ranks) for _ in range(gpus)]
    memories += range(len(memories), len(names))
    devices, many = Devices(names, owners), 99
    machine = RunningMachine(devices, ranks, 0, owners, memories, [1 << 34] * many, [1] * many)
    models = [H200.name if name.startswith("gpu") else "EPYC" for name in names]
    numbers = [i for i, name in enumerate(names) if name.startswith("gpu")]
    pairs = {
        (a, b): 1 for a in numbers for b in numbers if a != b and owners[a] == owners[b] and peers
    }
    layout = layout_of(machine, hosts, models, pairs)

    def rate(path: str, a: int, b: int) -> Rates:
        assert a != b
        return Rates(400_000_000_000 if path.startswith("GPUs of") else 50_000_000_000, 1000)

    joined = joined_by(layout, rate)
    devices = [
        Device(
            name,
            name.partition(":")[0],
            models[i],
            layout.nodes[i],
            layout.memories[i],
            machine.memory_bytes[i],
            H200.peak_flops if name.startswith("gpu") else {"float32": 10**11},
            H200.memory_bandwidth,
        )
        for i, name in enumerate(names)
    ]
    return Topology("local", devices, joined.links, joined.switches, joined.routes)
