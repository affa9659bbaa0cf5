"""The execution simulator, a thin view of the native one (``native/sim``; FlexFlow, section 5).

It simulates the very launches that the runtime makes, and the transfers that the plan's rectangles
imply on a device topology.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexlegion.errors import UserError
from flexlegion.plan import Launch, Plan
from flexlegion.topology import Topology


@dataclass(frozen=True)
class Task:
    """A task of a simulated iteration; times in ns.

    Parameters
    ----------
    device
        A device's name, or for a communication task the link's channel.
    launch, part
        Which task of the plan it is; for a communication task, the one whose result it moves.
    destination
        The memory that a communication task is for; none for a normal task.
    hop
        Which link of its route a communication task is, from 0; -1 for a normal task.
    bytes
        What a communication task moves.
    exe_time, ready_time, start_time, end_time
        The paper's properties of a task (Table 2).
    """

    device: str
    launch: Launch
    part: int
    destination: str | None
    hop: int
    bytes: int
    exe_time: int
    ready_time: int
    start_time: int
    end_time: int


@dataclass(frozen=True)
class Timeline:
    """A simulated iteration.

    Parameters
    ----------
    tasks
        Normal tasks in the plan's order, then communication tasks.
    iteration_time_ns
        The latest end.
    """

    tasks: list[Task]
    iteration_time_ns: int

    @property
    def bytes_moved(self) -> int:
        """Bytes that change memory in an iteration, however many links they pass."""
        return sum(task.bytes for task in self.tasks if task.hop == 0)


def full(plan: Plan, topology: Topology, exe_times: Sequence[Sequence[int]]) -> Timeline:
    """Simulate one training iteration from nothing (the full simulation algorithm).

    Parameters
    ----------
    plan
        What to simulate.
    topology
        The machine; it has to have all devices that the plan uses.
    exe_times
        For each launch of the plan, the ns that each of its tasks takes.

    Returns
    -------
    Timeline
        Every task's times.

    Raises
    ------
    UserError
        If the topology lacks a device of the plan.
    """
    core = plan.core
    names = plan.devices.names
    missing = [name for name in names if name not in topology.names]
    if missing:
        raise UserError(f"the machine has no device {missing[0]}; it has {topology.names}")
    user_of = {topology.device(name).memory: name for name in reversed(names)}  # its first device
    memories = list(dict.fromkeys(topology.device(name).memory for name in names))
    number = {memory: i for i, memory in enumerate(memories)}
    channels = {channel: i for i, channel in enumerate(topology.channels)}
    bandwidths, latencies = [1] * len(channels), [0] * len(channels)
    routes, lengths = [], []
    for source in memories:
        for destination in memories:
            route = topology.route(user_of[source], user_of[destination])
            lengths.append(len(route))
            for hop in route:
                channel = channels[hop.channel]
                bandwidths[channel] = hop.link.bandwidth
                latencies[channel] = hop.link.latency_ns
                routes.append(channel)
    ffi, lib = core.ffi, core.lib
    keep = [
        ffi.new("int32_t[]", [number[topology.device(name).memory] for name in names]),
        ffi.new("int64_t[]", bandwidths),
        ffi.new("int64_t[]", latencies),
        ffi.new("int32_t[]", lengths),
        ffi.new("int32_t[]", routes),
    ]
    machine = ffi.new(
        "fl_machine *",
        [len(names), keep[0], len(channels), keep[1], keep[2], len(memories), keep[3], keep[4]],
    )
    times = [time for launch in exe_times for time in launch]
    handle = ffi.gc(
        core.check(lib.fl_simulation_create(plan.handle, machine, len(times), times)),
        lib.fl_simulation_destroy,
    )
    raw = ffi.new("fl_task[]", lib.fl_simulation_tasks(handle))
    lib.fl_simulation_read(handle, raw)
    places = [*names, *channels]
    tasks = [
        Task(
            places[t.device],
            plan.launches[t.launch],
            t.part,
            memories[t.destination] if t.destination >= 0 else None,
            t.hop,
            t.bytes,
            t.exe_time,
            t.ready_time,
            t.start_time,
            t.end_time,
        )
        for t in raw
    ]
    return Timeline(tasks, int(lib.fl_simulation_iteration_time(handle)))
