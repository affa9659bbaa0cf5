"""Timelines made small: numbers instead of texts, gaps instead of times, and few enough slices.

A track is a flat list of four numbers a slice: the gap before it in ns, its length in ns, the
number of its label, and its part. Where there are too many slices, neighbours that could not be
seen apart become one, of label -1, whose part is their number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.documents import read_json
from flexlegion.base.errors import UserError
from flexlegion.plan.passes import PASSES, ROWS
from flexlegion.sim.simulator import Timeline

MOST_SLICES = 60_000
LINK_BINS = 480
LINKS_DRAWN = 24
BUSY = 1000  # the load of a bin during which a link is busy all the time
_LABEL = re.compile(rf"({'|'.join(PASSES)}) (.{{1,2000}}?)(?: \[([0-9]{{1,9}})\])?", re.DOTALL)
_LONGEST_NS = 10**15

Slice = tuple[int, int, int, int]  # start, length, label, part


def simulated_tracks(timeline: Timeline) -> dict[str, Any]:
    """Labels, and a track a device, of a simulated iteration."""
    graph = timeline.problem.graph
    labels: dict[tuple[int, int, int | None], int] = {}
    names: list[list[Any]] = []
    slices: list[list[Slice]] = [[] for _ in timeline.problem.devices.names]
    rows = timeline.tasks[timeline.tasks["hop"] < 0]
    several = graph.micro_batches > 1 and len(rows) <= MOST_SLICES  # of more, few could be seen
    for row in rows[np.argsort(rows["start_time"], kind="stable")]:
        pass_, index = int(row["pass"]), int(row["index"])
        number = int(row["round"]) if several and not ROWS[pass_].closing else None
        label = labels.setdefault((pass_, index, number), len(labels))
        if label == len(names):
            owner = graph.tensors[index] if ROWS[pass_].of == "input" else graph.operators[index]
            names.append([pass_, _of_round(owner.name, number)])
        start, end = int(row["start_time"]), int(row["end_time"])
        slices[row["device"]].append((start, end - start, label, int(row["part"])))
    named = dict(zip(timeline.problem.devices.names, slices, strict=True))
    return _tracks(names, named, timeline.iteration_time_ns)


def measured_tracks(path: str | Path) -> dict[str, Any]:
    """The same of a file that ``flexlegion train --timeline`` wrote.

    Raises
    ------
    UserError
        If it is no such file.
    """
    document = read_json(
        path, "timeline", "flexlegion train --timeline FILE writes one", "that training wrote"
    )
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise UserError(
            f"{path}: not a timeline; give a file that 'flexlegion train --timeline' wrote"
        )
    about = document.get("otherData")
    iterations = about.get("iterations") if isinstance(about, dict) else None
    if type(iterations) is not int or not 1 <= iterations <= 10**6:
        iterations = None
    device_of = _threads(events)
    tracks: dict[str, list[Slice]] = {name: [] for name in device_of.values()}
    names: list[list[Any]] = []
    labels: dict[tuple[int, str], int] = {}
    end = 0
    for number, event in enumerate(events):
        if event.get("ph") != "X":
            continue
        times = [event.get("ts"), event.get("dur")]
        key = (event.get("pid"), event.get("tid"))
        if not all(map(_is_time, times)) or str(key) not in device_of:
            raise UserError(f"{path}: event {number} of the timeline has no times, or no device")
        start, length = (round(1000 * time) for time in times)
        match = _LABEL.fullmatch(str(event.get("name")))
        pass_ = PASSES.index(match[1]) if match else len(PASSES)
        name = match[2] if match else str(event.get("name"))
        args = event.get("args")
        name = _of_round(name, args.get("micro_batch") if isinstance(args, dict) else None)
        label = labels.setdefault((pass_, name), len(labels))
        if label == len(names):
            names.append([pass_, name])
        part = int(match[3]) if match and match[3] else 0
        tracks[device_of[str(key)]].append((start, length, label, part))
        end = max(end, start + length)
    if not end:
        raise UserError(f"{path}: the timeline has no tasks")
    for its in tracks.values():
        its.sort()
    return _tracks(names, tracks, end) | {
        "iterations": iterations,
        "iteration_time_ns": round(end / iterations) if iterations else None,
    }


def link_loads(timeline: Timeline) -> list[dict[str, Any]]:
    """What passes each link that is in use, the busiest first.

    The first `LINKS_DRAWN` have ``bins``: how busy the link is in each of `LINK_BINS` equal parts
    of the iteration, in thousandths, rounded up so that no transfer disappears.
    """
    problem = timeline.problem
    devices = len(problem.devices.names)
    moves = timeline.tasks[timeline.tasks["hop"] >= 0]
    moves = moves[np.lexsort((moves["start_time"], moves["device"]))]
    loads: list[dict[str, Any]] = []
    transfers: dict[str, npt.NDArray[Any]] = {}
    for number, name in enumerate(problem.topology.channels):
        low, high = np.searchsorted(moves["device"], [devices + number, devices + number + 1])
        its = moves[low:high]
        if len(its):
            loads.append(
                {
                    "name": name,
                    "bytes": int(its["bytes"].sum()),
                    "busy_ns": timeline.load_ns[name],
                    "transfers": len(its),
                }
            )
            transfers[name] = its
    loads.sort(key=lambda load: -load["busy_ns"])
    edges = np.linspace(0, max(timeline.iteration_time_ns, 1), LINK_BINS + 1)
    for load in loads[:LINKS_DRAWN]:
        load["bins"] = _bins(transfers[load["name"]], edges)
    return loads


def _bins(moves: npt.NDArray[Any], edges: npt.NDArray[np.float64]) -> list[int]:
    times = np.stack([moves["start_time"], moves["end_time"]], axis=1).ravel()
    busy = np.cumsum(moves["end_time"] - moves["start_time"])
    so_far = np.stack([np.concatenate([[0], busy[:-1]]), busy], axis=1).ravel()
    shares = np.diff(np.interp(edges, times, so_far)) / np.diff(edges)
    # The differences of floats may leave a trace of a transfer in a bin that has none.
    return [min(BUSY, math.ceil(BUSY * share - 1e-6)) for share in shares]


def _of_round(name: str, number: Any) -> str:
    """What a task is of, and of which micro-batch, if there are several."""
    return f"{name}, micro-batch {number}" if type(number) is int else name


def _is_time(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value <= _LONGEST_NS / 1000
    )


def _threads(events: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The device's name of each process and thread."""
    names = {}
    for event in events:
        args = event.get("args")
        if event.get("name") == "thread_name" and isinstance(args, dict):
            names[str((event.get("pid"), event.get("tid")))] = str(args.get("name"))
    return names


def _tracks(labels: list[list[Any]], slices: Mapping[str, list[Slice]], end: int) -> dict[str, Any]:
    number = sum(map(len, slices.values()))
    shortest = 0
    merged = dict(slices)
    while sum(map(len, merged.values())) > MOST_SLICES:
        shortest = 2 * shortest or max(1, end // 100_000)
        merged = {name: _merged(its, shortest) for name, its in slices.items()}
    return {
        "labels": labels,
        "end": end,
        "slices": number,
        "devices": [{"name": name, "track": _flat(its)} for name, its in merged.items()],
    }


def _merged(slices: Iterable[Slice], shortest: int) -> list[Slice]:
    """Slices and gaps that are shorter make one with their neighbours."""
    result: list[Slice] = []
    for slice_ in slices:
        start, length, _, _ = slice_
        if result and length < shortest:
            before, its_length, label, part = result[-1]
            if start - before - its_length < shortest and (label < 0 or its_length < shortest):
                count = part + 1 if label < 0 else 2
                result[-1] = (before, start + length - before, -1, count)
                continue
        result.append(slice_)
    return result


def _flat(slices: Iterable[Slice]) -> list[int]:
    flat = []
    now = 0
    for start, length, label, part in slices:
        flat += [start - now, length, label, part]
        now = start + length
    return flat
