"""Timelines as Chrome trace files, which https://ui.perfetto.dev and chrome://tracing show.

The format is the JSON one of "Trace Event Format": complete events for what runs on a track,
counters, and metadata that names processes and threads. Here a process stands for a node of the
machine, or for the network between nodes, and a thread for a device or a link.

Events are written as they come, so that a timeline of a million tasks takes no memory. Times are
microseconds with three decimals, which is exact for nanoseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flexlegion.base.files import write_text
from flexlegion.machine.parts import Hop
from flexlegion.machine.topology import Topology

NETWORK = "network"

# Device or link, name, start in ns, duration in ns, details.
Row = tuple[str, str, int, int, Mapping[str, Any]]

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Track(NamedTuple):
    """A line of the picture: a device of a node, say."""

    process: str
    name: str


class Slice(NamedTuple):
    """Something that took time, simulated or measured; those of a track do not overlap.

    Parameters
    ----------
    track, process
        Where it ran: a device or a link, and the node or network that it belongs to.
    name
        What it is.
    start_ns, duration_ns
        When it ran.
    category
        By which viewers select: ``task``, ``transfer``.
    args
        What a viewer shows of it on demand.
    """

    track: str
    process: str
    name: str
    start_ns: int
    duration_ns: int
    category: str = "task"
    args: Mapping[str, Any] = {}


class Count(NamedTuple):
    """The value of a counter, such as the bytes in a device's memory, from a time on."""

    process: str
    name: str
    time_ns: int
    value: float


def write_trace(
    path: str | Path,
    slices: Iterable[Slice],
    counts: Iterable[Count] = (),
    *,
    tracks: Iterable[Track] = (),
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a trace file; an earlier one stays as it is until the new one is complete.

    Parameters
    ----------
    path
        The file, by custom ``.json``.
    slices, counts
        What to show, in any order; read once.
    tracks
        Tracks in the order in which viewers show them, also those on which nothing runs. Others
        follow in the order in which their first slices come.
    about
        What the file is of, for people: model, machine, strategy.

    Raises
    ------
    UserError
        If the file cannot be written there.
    """
    write_text(path, _parts(slices, counts, tracks, about or {}), "trace")


def _parts(
    slices: Iterable[Slice],
    counts: Iterable[Count],
    tracks: Iterable[Track],
    about: Mapping[str, Any],
) -> Iterator[str]:
    """The file, an event a line."""
    yield f'{{"displayTimeUnit":"ns","otherData":{_encode(dict(about))},"traceEvents":[\n'
    separator = ""
    for event in _events(slices, counts, tracks):
        yield separator + event
        separator = ",\n"
    yield "\n]}\n"


def _events(
    slices: Iterable[Slice], counts: Iterable[Count], tracks: Iterable[Track]
) -> Iterator[str]:
    numbers = _Numbers()
    for process, track in tracks:
        yield from numbers.new(process, track)
    for s in slices:
        yield from numbers.new(s.process, s.track)
        yield (
            f'{{"ph":"X","pid":{numbers.processes[s.process]},'
            f'"tid":{numbers.tracks[s.process, s.track]},'
            f'"ts":{_microseconds(s.start_ns)},"dur":{_microseconds(s.duration_ns)},'
            f'"name":{_encode(s.name)},"cat":{_encode(s.category)},"args":{_encode(dict(s.args))}}}'
        )
    for c in counts:
        yield from numbers.new(c.process)
        yield (
            f'{{"ph":"C","pid":{numbers.processes[c.process]},"ts":{_microseconds(c.time_ns)},'
            f'"name":{_encode(c.name)},"args":{{"value":{_encode(c.value)}}}}}'
        )


class _Numbers:
    """Numbers of processes and threads, in the order in which they come.

    No thread has its process's number, for viewers take such a one for the main thread.
    """

    def __init__(self) -> None:
        self.processes: dict[str, int] = {}
        self.tracks: dict[tuple[str, str], int] = {}

    def new(self, process: str, track: str | None = None) -> Iterator[str]:
        """Number what has no number yet; the events that give its name and order."""
        if process not in self.processes:
            self.processes[process] = pid = self._next()
            yield _metadata("process", pid, None, process)
        if track is not None and (process, track) not in self.tracks:
            self.tracks[process, track] = tid = self._next()
            yield _metadata("thread", self.processes[process], tid, track)

    def _next(self) -> int:
        return 1 + len(self.processes) + len(self.tracks)


def _metadata(what: str, pid: int, tid: int | None, name: str) -> str:
    place = f'"pid":{pid}' if tid is None else f'"pid":{pid},"tid":{tid}'
    order = pid if tid is None else tid
    return (
        f'{{"ph":"M",{place},"name":"{what}_name","args":{{"name":{_encode(name)}}}}},\n'
        f'{{"ph":"M",{place},"name":"{what}_sort_index","args":{{"sort_index":{order}}}}}'
    )


def _microseconds(ns: int) -> str:
    """Exactly; a float would lose nanoseconds, and write small ones with an exponent."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


def tracks_of(topology: Topology) -> list[Track]:
    """A machine's tracks: each node's devices, then its links; then the links between nodes."""
    node_of = {device.memory: device.node for device in topology.devices}
    node_of |= {s.name: s.node for s in topology.switches if s.node is not None}
    tracks: dict[str, list[Track]] = {f"node {n}": [] for n in range(topology.nodes)}
    tracks[NETWORK] = []
    for device in topology.devices:
        tracks[f"node {device.node}"].append(Track(f"node {device.node}", device.name))
    for link in topology.links:
        ends = {node_of.get(link.source), node_of.get(link.destination)}
        node = ends.pop()
        process = NETWORK if ends or node is None else f"node {node}"
        channels = dict.fromkeys(hop.channel for hop in (Hop(link), Hop(link, True)))
        tracks[process] += [Track(process, channel) for channel in channels]
    return [track for process in tracks.values() for track in process]


def slices_of(rows: Iterable[Row], topology: Topology) -> Iterator[Slice]:
    """What ran on a machine's devices and links; and what of it was the runtime's.

    Where the runtime takes time of a device, a track of its own shows it, at the beginning of each
    task that waits for it.

    Parameters
    ----------
    rows
        What ran where, as a simulated timeline's `rows` gives it.
    topology
        The machine.
    """
    process_of = {track.name: track.process for track in tracks_of(topology)}
    for place, name, start, duration, args in rows:
        category = "task" if place in topology.names else "transfer"
        yield Slice(place, process_of[place], name, start, duration, category, args)
        if taken := args.get("runtime_time_ns"):
            track = f"runtime on {place}"
            yield Slice(track, process_of[place], f"launching {name}", start, taken, "runtime")
