"""The machine that this program runs on, as Legion found it: the topology called ``local``.

CPU processors of a rank share its memory; a GPU has its own. What joins memories is described in
`local_links`. The rates are measured once and then come from the profile data base: a processor's
peak is the rate of a matrix product of 1024 x 1024 x 1024 by the runtime's own leaf task, its
memory bandwidth that of a sum of gradients of 16 MiB, while all that share its memory do the same.
GPUs' rates follow from what their driver says of them (`gpus`), as those of machine files do from
data sheets; only if it does not say enough, they are measured as well.
"""

from __future__ import annotations

import platform
import socket
from dataclasses import astuple, replace
from pathlib import Path

from flexlegion.base.errors import UserError
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.cost.records import DeviceRates
from flexlegion.graph.graph import Graph
from flexlegion.machine.devices import Devices
from flexlegion.machine.parts import Device
from flexlegion.machine.running import RunningMachine, all_gather, running_machine
from flexlegion.machine.topology import Topology
from flexlegion.ops.dense import Dense
from flexlegion.plan.plan import Plan
from flexlegion.profiling.gpus import library_of, running_gpus
from flexlegion.profiling.local_links import MeasuredLinks, agreed, joined_by, layout_of
from flexlegion.profiling.timing import Repeats, time_sum, time_task
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.strategy import Strategy

_NAME_BYTES = 128  # of a host's and a processor's name, when ranks exchange them


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


def local_memories() -> Topology:
    """The running machine, for simulations of what it stores where: rates mean nothing."""
    with ProfileDB() as db:
        return _describe(running_machine(), db, measure=False, rates=DeviceRates(1, 1))


def _describe(
    machine: RunningMachine, db: ProfileDB, measure: bool, rates: DeviceRates | None = None
) -> Topology:
    """The machine; `rates` of its processors, None: measured."""
    hosts, models = hosts_and_models()
    gpus = running_gpus()
    names = machine.devices.names
    of = [
        gpus.of[i].name if i in gpus.of else _with_threads(models[owner], machine.threads[i])
        for i, owner in enumerate(machine.owners)
    ]
    of_model = {
        model: rates or _device_rates(machine, of.index(model), model, db)
        for model in dict.fromkeys(of)
    }
    layout = layout_of(machine, hosts, of, gpus.peers)
    devices = []
    for i, name in enumerate(names):
        rate = of_model[of[i]]
        peaks = gpus.of[i].peak_flops if i in gpus.of else {}
        devices.append(
            Device(
                name,
                name.partition(":")[0],
                of[i],
                layout.nodes[i],
                layout.memories[i],
                machine.memory_bytes[i],
                peaks or {"float32": rate.peak_flops},
                rate.memory_bandwidth,
            )
        )
    links = MeasuredLinks(layout, db, measure)
    joined = joined_by(layout, links)
    return Topology(
        "local",
        devices,
        joined.links,
        joined.switches,
        joined.routes,
        description=f"{len(names)} processors on {machine.ranks} rank{'s' * (machine.ranks > 1)}; "
        f"rates of processors measured{links.sources}",
    )


def _with_threads(model: str, threads: int) -> str:
    """A processor's model: one of several threads is another device."""
    return model if threads == 1 else f"{model}, {threads} threads"


def hosts_and_models() -> tuple[list[str], list[str]]:
    """Host name and processor model of every rank."""
    texts = [
        text.encode()[:_NAME_BYTES].ljust(_NAME_BYTES)
        for text in (socket.gethostname(), cpu_model())
    ]
    ranks = all_gather(b"".join(texts))
    hosts = [rank[:_NAME_BYTES].decode(errors="replace").strip() for rank in ranks]
    return hosts, [rank[_NAME_BYTES:].decode(errors="replace").strip() for rank in ranks]


def _device_rates(machine: RunningMachine, device: int, model: str, db: ProfileDB) -> DeviceRates:
    """What processors of a model reach, `device` being the first of them."""
    library = library_of(device)
    known = db.device(model, library)
    rates = DeviceRates(*agreed(astuple(known) if known else (0, 0), machine.owners[device]))
    if rates.peak_flops == 0:
        rates = _measure_device(machine.devices, device)
        gpu = running_gpus().of.get(device)
        if gpu is not None:
            rates = replace(
                rates,
                peak_flops=gpu.peak_flops.get("float32", rates.peak_flops),
                memory_bandwidth=gpu.memory_bandwidth or rates.memory_bandwidth,
            )
    if known is None:
        db.add_device(model, library, rates)
    return rates


def _measure_device(devices: Devices, device: int) -> DeviceRates:
    """The rates that the module's header speaks of."""
    extent, repeats = 1024, Repeats(2, 5, 11, 100_000_000, 0)
    graph = Graph()
    x = graph.add_input("x", (extent, extent), "float32")
    y = graph.add(Dense(extent, use_bias=False), [x], "product")
    strategy = Strategy({"product": ParallelConfig((1, 1, 1), (devices.names[device],))})
    plan = Plan(strategy.checked(graph, devices), y)
    forward = next(i for i, launch in enumerate(plan.launches) if launch.pass_ == "forward")
    # The shortest times: what else runs meanwhile is not the processor's fault.
    product = min(time_task(plan, forward, 0, repeats=repeats).together)
    elements = 4 << 20
    total = min(time_sum(device, 2, elements, repeats).together)
    moved = 5 * 4 * elements  # one slot is copied, the other added to the copy
    return DeviceRates(round(2e9 * extent**3 / product), round(1e9 * moved / total))
