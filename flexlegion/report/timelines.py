"""What a simulated iteration comes to, as text and as JSON, and its trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.console.blocks import Block, Pairs, Table
from flexlegion.console.text import consecutive, duration, memory, names, volume
from flexlegion.report.perfetto import slices_of, tracks_of, write_trace
from flexlegion.sim.problem import MAX_TIME_NS
from flexlegion.sim.simulator import Timeline
from flexlegion.strategy.strategy import ResolvedStrategy

Json = dict[str, Any]

MEMORIES_SHOWN = 4


def figures(timeline: Timeline) -> Json:
    """The figures by which strategies are compared; times in ns, sizes in bytes.

    Of memory: ``allocated_bytes`` is the most that training by flexlegion's runtime allocates in
    any. It keeps that throughout; tensors that are needed for a short while take turns in it.
    ``contents_bytes`` is what the fullest one has of it for what (`CONTENTS`). ``fits`` says
    whether it is within each one's size. ``peak_memory_bytes`` is the most that any holds at one
    time of what is still needed: what a runtime would do with that gives all else back at once.
    """
    return {
        "iteration_time_ns": timeline.iteration_time_ns,
        "bytes_moved": timeline.bytes_moved,
        "computation_time_ns": timeline.computation_time_ns,
        "peak_memory_bytes": max(timeline.peak_memory_bytes.values()),
        "allocated_bytes": max(timeline.allocated_bytes.values()),
        "contents_bytes": timeline.contents_bytes[fullest(timeline)],
        "load_balance": timeline.load_balance,
        "fits": timeline.fits,
    }


def details(timeline: Timeline, priced_by: Mapping[str, int]) -> Json:
    """`figures`, and more: each memory, the busiest device and link, who priced how many tasks.

    Of the computation time, ``recomputed_ns`` is for what the backward pass computes again; of the
    bytes moved, ``gathered_bytes`` are of sharded weights; ``idle_share`` is that of the devices'
    time, 0 to 1, in which they do not compute.

    Parameters
    ----------
    timeline
        The iteration.
    priced_by
        What `Problem.priced_by` says of its strategy.
    """
    capacities = capacity(timeline)
    device, link = busiest(timeline)
    return figures(timeline) | {
        "recomputed_ns": timeline.recomputed_ns,
        "gathered_bytes": timeline.gathered_bytes,
        "idle_share": timeline.idle_share,
        "busiest_device": device,
        "busiest_link": link,
        "tasks_priced": dict(priced_by),
        "memories": [
            {
                "name": name,
                "peak_bytes": peak,
                "allocated_bytes": timeline.allocated_bytes[name],
                "capacity_bytes": capacities[name],
                "contents_bytes": timeline.contents_bytes[name],
            }
            for name, peak in timeline.peak_memory_bytes.items()
        ],
    }


def capacity(timeline: Timeline) -> dict[str, int]:
    """The size of each memory in bytes."""
    return {d.memory: d.memory_bytes for d in timeline.problem.topology.devices}


def fullest(timeline: Timeline) -> str:
    """The memory of which the largest share is allocated."""
    sizes, held = capacity(timeline), timeline.allocated_bytes
    return max(held, key=lambda name: held[name] / sizes[name])


def memory_excess(strategy: ResolvedStrategy, timeline: Timeline) -> str | None:
    """A sentence on why a strategy does not fit into memory; None: it does."""
    try:
        timeline.problem.require_memory(strategy, timeline.allocated_bytes)
    except UserError as e:
        return str(e)
    return None


def time_excess(timeline: Timeline) -> str | None:
    """A sentence on a task or transfer that takes longer than is simulated; None: none does."""
    # A place is busy for as long as the longest of its tasks, at least.
    if max(timeline.load_ns.values()) < MAX_TIME_NS:
        return None
    longest = timeline.tasks[timeline.tasks["exe_time"].argmax()]
    if longest["exe_time"] < MAX_TIME_NS:
        return None
    keys = "'peak_flops' and 'memory_bandwidth'" if longest["hop"] < 0 else "'bandwidth'"
    return (
        f"{timeline.describe(longest)} takes {timeline.places[longest['device']]} at least "
        f"{MAX_TIME_NS // 10**9:,} s, the longest time that is simulated; choose a smaller batch, "
        f"or see whether {keys} in the file of machine {timeline.problem.topology.name} are right"
    )


def busiest(timeline: Timeline) -> tuple[Json | None, Json | None]:
    """The device and the link that work longest: name, and nanoseconds; None: nothing does."""
    topology = timeline.problem.topology

    def longest(places: Sequence[str]) -> Json | None:
        name = max(places, key=lambda place: timeline.load_ns[place], default=None)
        if name is None or timeline.load_ns[name] == 0:
            return None
        return {"name": name, "busy_ns": timeline.load_ns[name]}

    return longest(topology.names.names), longest(topology.channels)


def described(timeline: Timeline, priced_by: Mapping[str, int]) -> list[Block]:
    """`details` for people."""
    device, link = busiest(timeline)
    total = max(timeline.iteration_time_ns, 1)

    def busy(place: Json | None) -> str:
        if place is None:
            return "none"
        share = place["busy_ns"] / total
        return f"{place['name']}: {duration(place['busy_ns'])}, {share:.0%} of the iteration"

    rows = [
        ("iteration time", duration(timeline.iteration_time_ns)),
        ("bytes moved", volume(timeline.bytes_moved)),
        ("computation time", f"{duration(timeline.computation_time_ns)}, of all devices together"),
        *_for_memory(timeline),
        ("load balance", f"{timeline.load_balance:.3f}, mean load of the devices over the largest"),
        ("busiest device", busy(device)),
        ("busiest link", busy(link)),
        ("tasks priced", priced(priced_by)),
    ]
    kinds = (operator.kind for operator in timeline.problem.graph.operators)
    if assumed := dict.fromkeys(kind.assumption for kind in kinds if kind.assumption):
        rows.append(("assumed", "; ".join(assumed)))
    return [Pairs(rows), _memories(timeline)]


def _for_memory(timeline: Timeline) -> list[tuple[str, str]]:
    """What recomputation, sharded weights and micro-batches come to, where there are any."""
    rows = []
    if timeline.recomputed_ns:
        what = f"{duration(timeline.recomputed_ns)} of the computation time"
        rows.append(("recomputed", what))
    if timeline.gathered_bytes:
        what = f"{volume(timeline.gathered_bytes)} of the bytes moved, of sharded weights"
        rows.append(("gathered", what))
    if timeline.problem.graph.micro_batches > 1:
        rows.append(("idle", f"{timeline.idle_share:.0%} of the devices' time, with all bubbles"))
    return rows


def priced(priced_by: Mapping[str, int]) -> str:
    """``5,184 analytic, 12 measured``."""
    return ", ".join(f"{number:,} {name}" for name, number in sorted(priced_by.items()))


def memory_told(timeline: Timeline) -> str:
    """What the fullest memory has, for what, and how large it is."""
    name = fullest(timeline)
    held, size = timeline.allocated_bytes[name], capacity(timeline)[name]
    return f"{name} has {memory(held)} of {memory(size)}: {_contents(timeline)}"


def _contents(timeline: Timeline) -> str:
    """``weights 1.2 GiB, weight gradients 1.2 GiB, ...``, the most first."""
    its = timeline.contents_bytes[fullest(timeline)]
    told = sorted((kind for kind in its if its[kind]), key=lambda kind: -its[kind])
    return ", ".join(f"{kind} {memory(its[kind])}" for kind in told)


def _memories(timeline: Timeline) -> Table:
    """The fullest memories, those that hold equally much on one line; of the fullest, for what."""
    sizes = capacity(timeline)
    values = {
        name: (peak, timeline.allocated_bytes[name], sizes[name])
        for name, peak in timeline.peak_memory_bytes.items()
    }
    places = sorted(values, key=lambda name: -values[name][1] / values[name][2])  # stable
    runs = consecutive([values[name] for name in places])
    rows = [
        (names(places[start:end]), *map(memory, values[places[start]]))
        for start, end in runs[:MEMORIES_SHOWN]
    ]
    note = f"of {places[0]}: {_contents(timeline)}"
    if len(runs) > MEMORIES_SHOWN:
        note = f"and {len(places) - runs[MEMORIES_SHOWN][0]} more, which are less full\n{note}"
    return Table(("memory", "peak", "allocated", "capacity"), rows, note=note)


def save_trace(path: str | Path, timeline: Timeline, about: Mapping[str, Any]) -> None:
    """Write the timeline for https://ui.perfetto.dev; see `write_trace`."""
    topology = timeline.problem.topology
    write_trace(path, slices_of(timeline.rows(), topology), tracks=tracks_of(topology), about=about)
