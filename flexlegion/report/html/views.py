"""What each view of a report shows, as plain dicts and lists: the templates only lay it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from flexlegion.console.text import common_name, count, duration, memory
from flexlegion.console.text import names as device_names
from flexlegion.machine.parts import Hop
from flexlegion.plan.passes import PASSES, ROWS
from flexlegion.report.html.groups import Folded, Group
from flexlegion.report.html.picture import drawn
from flexlegion.report.timelines import capacity
from flexlegion.sim.deviations import Deviation, configuration
from flexlegion.sim.simulator import CONTENTS, NO_MEMORY, Reference, Timeline
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.strategy import ResolvedStrategy

Json = dict[str, Any]

DEVIATIONS_SHOWN = 30
CONFIGURATIONS_SHOWN = 12
POINTS_SHOWN = 2000
BARS_UP_TO = 3  # times as long as this strategy's iteration: beyond it, a bar is cut,
DATA_UP_TO = 10  # but for data parallelism, and what is no slower


def headline(
    time_ns: int, data: Reference, found: Sequence[Deviation], *, fits: bool, same: bool
) -> Json:
    """The result in a few words, and the reason for it; `same`: it is data parallelism."""
    if not fits:
        what = f"into memory; if it did, an iteration would take {duration(time_ns)}"
        return {"big": "Does not fit", "what": what, "why": ""}
    if same:
        return {"big": duration(time_ns), "what": "an iteration of data parallelism", "why": ""}
    if data.time_ns is None:
        return {
            "big": duration(time_ns),
            "what": f"an iteration; data parallelism {data.reason}",
            "why": "",
        }
    speedup = data.time_ns / time_ns
    why = ""
    best = next((d for d in found if d.saved_ns is not None and d.saved_ns > 0), None)
    if best is not None and best.saved_ns is not None:
        operators = [op.name for op in best.operators]
        number = f" ({count(len(operators), 'operator')})" if len(operators) > 1 else ""
        why = (
            f"Most is saved by {common_name(operators)}{number}: "
            f"{configuration(best.operators[0], best.config)}. With data parallelism there alone, "
            f"an iteration would take {duration(best.saved_ns)} longer."
        )
    return {
        "big": f"{speedup:.2f}×",
        "what": f"the speed of data parallelism: {duration(time_ns)} an iteration instead of "
        f"{duration(data.time_ns)}",
        "why": why,
    }


def graph_views(levels: Sequence[Folded], timeline: Timeline) -> list[Json]:
    """Each level of folding: its picture, and what is told of each node."""
    names = ("blocks", "layers") if len(levels) > 1 else ("layers",)
    busy = _busy(timeline)
    return [
        {
            "name": name,
            "picture": drawn(folded, timeline.strategy),
            "nodes": [_told(group, timeline, busy) for group in folded.groups],
        }
        for name, folded in zip(names, levels, strict=True)
    ]


def _told(group: Group, timeline: Timeline, busy: dict[str, dict[int, int]]) -> Json:
    strategy = timeline.strategy
    number = timeline.problem.operator_numbers
    configs: dict[tuple[str, ParallelConfig], list[str]] = {}
    for op in group.operators:
        configs.setdefault((op.kind.type, strategy[op.name]), []).append(op.name)
    by_name = {op.name: op for op in group.operators}
    rows = sorted(configs.items(), key=lambda item: -len(item[1]))
    shapes = list(
        dict.fromkeys(t.shape for t in (*group.inputs, *(o.output for o in group.operators)))
    )
    times = {
        pass_: sum(busy[pass_].get(number[op.name], 0) for op in group.operators)
        for pass_ in (row.name for row in ROWS if row.of != "input")
    }
    weights = dict.fromkeys(w for op in group.operators for w in op.trained_weights)
    return {
        "name": group.name,
        "repeats": group.repeats,
        "operators": len(group.operators),
        "types": ", ".join(dict.fromkeys(op.kind.type for op in group.operators)) or "input",
        "shapes": [" × ".join(map(str, shape)) for shape in shapes[:3]] + ["…"] * (len(shapes) > 3),
        "weights": sum(int(np.prod(w.shape, dtype=np.int64)) for w in weights),
        "times": {pass_: time for pass_, time in times.items() if time},
        "configs": [
            {
                "operators": common_name(names),
                "number": len(names),
                "type": kind,
                "configuration": configuration(by_name[names[0]], config),
            }
            for (kind, config), names in rows[:CONFIGURATIONS_SHOWN]
        ],
        "more": max(0, len(rows) - CONFIGURATIONS_SHOWN),
    }


def _busy(timeline: Timeline) -> dict[str, dict[int, int]]:
    """For each pass, how long the tasks of each operator take."""
    rows = timeline.tasks[timeline.tasks["hop"] < 0]
    lengths = rows["end_time"] - rows["start_time"]
    result = {}
    for pass_, name in enumerate(PASSES):
        mine = rows["pass"] == pass_
        sums = np.bincount(rows["index"][mine], lengths[mine])
        result[name] = {i: int(ns) for i, ns in enumerate(sums) if ns}
    return result


def heat_view(folded: Folded, timeline: Timeline) -> Json:
    """Device by operator: how long each device computes for each group."""
    devices = timeline.problem.devices.names
    rows = timeline.tasks[timeline.tasks["hop"] < 0]
    number = timeline.problem.operator_numbers
    groups = [group for group in folded.groups if group.operators]
    row_of = {number[op.name]: i for i, group in enumerate(groups) for op in group.operators}
    times = np.zeros((len(groups) + 1, len(devices)), np.int64)
    for row in rows:
        at = len(groups) if ROWS[row["pass"]].of == "input" else row_of[int(row["index"])]
        times[at, row["device"]] += row["end_time"] - row["start_time"]
    total = max(timeline.iteration_time_ns, 1)
    most = max(int(times.max()), 1)
    names = [group.name for group in groups] + ["loading the batch"]
    shares = [timeline.load_ns[d] / total for d in devices]
    alike: dict[tuple[str, ...], list[int]] = {}  # devices of which all that is shown is the same
    for at, share in enumerate(shares):
        shown = (*(duration(int(ns)) for ns in times[:, at]), f"{share:.2g}")
        alike.setdefault(shown, []).append(at)
    columns = list(alike.values())
    return {
        "number": len(devices),
        "devices": [device_names([devices[at] for at in column]) for column in columns],
        "rows": [
            {
                "name": name,
                "total": int(row.sum()),
                "cells": [
                    {"ns": int(row[column[0]]), "heat": round(int(row[column[0]]) / most, 3)}
                    for column in columns
                ],
            }
            for name, row in zip(names, times, strict=True)
            if row.any()
        ],
        "busy": [{"share": shares[column[0]]} for column in columns],
    }


def memory_view(timeline: Timeline) -> Json:
    """What each memory holds, and the fullest one."""
    sizes = capacity(timeline)
    rows: list[Json] = [
        {
            "name": name,
            "peak": peak,
            "allocated": timeline.allocated_bytes[name],
            "capacity": sizes[name],
            "contents": [timeline.contents_bytes[name][content] for content in CONTENTS],
        }
        for name, peak in timeline.peak_memory_bytes.items()
    ]
    alike: dict[tuple[str, ...], list[Json]] = {}
    for row in rows:
        held = (row["peak"], row["allocated"], row["capacity"], *row["contents"])
        alike.setdefault(tuple(map(memory, held)), []).append(row)
    rows = [its[0] | {"name": device_names([r["name"] for r in its])} for its in alike.values()]
    most = max(1, *(row["allocated"] for row in rows))
    used = [any(row["contents"][i] for row in rows) for i in range(len(CONTENTS))]
    contents = [(i, name) for i, name in enumerate(CONTENTS) if used[i]]
    fullest = max(rows, key=lambda row: row["allocated"] / row["capacity"])
    return {"rows": rows, "most": most, "contents": contents, "fullest": fullest}


def links_view(loads: Sequence[Json], timeline: Timeline) -> Json:
    """Each link: what passes it, and how busy it is."""
    link_of = {
        hop.channel: hop.link
        for link in timeline.problem.topology.links
        for hop in (Hop(link), Hop(link, True))
    }
    total = max(timeline.iteration_time_ns, 1)
    rows = [
        {
            "name": load["name"],
            "kind": link_of[load["name"]].kind,
            "bandwidth": link_of[load["name"]].bandwidth,
            "bytes": load["bytes"],
            "transfers": load["transfers"],
            "busy_ns": load["busy_ns"],
            "share": load["busy_ns"] / total,
        }
        for load in loads
    ]
    return {"rows": rows, "idle": len(timeline.problem.topology.channels) - len(rows)}


def deviations_view(found: Sequence[Deviation], operators: int) -> Json:
    """What each choice saves."""
    rows: list[Json] = [
        {
            "operators": common_name([op.name for op in d.operators]),
            "number": len(d.operators),
            "type": d.operators[0].kind.type,
            "configuration": configuration(d.operators[0], d.config),
            "usual": configuration(d.operators[0], d.usual),
            "saved_ns": d.saved_ns,
            "saved_bytes": d.saved_bytes,
            "needed": d.reason == NO_MEMORY,
        }
        for d in found
    ]
    most = max((abs(row["saved_ns"] or 0) for row in rows), default=0)
    return {
        "rows": rows[:DEVIATIONS_SHOWN],
        "more": max(0, len(rows) - DEVIATIONS_SHOWN),
        "sketched": any(d.sketched for d in found),
        "most": max(most, 1),
        "number": sum(row["number"] for row in rows),
        "of": operators,
    }


def search_view(found: Mapping[str, Any]) -> Json | None:
    """How a search went, as far as the strategy's file tells it."""
    starts = found.get("start_times_ns")
    if not isinstance(starts, Mapping):
        return None
    times = {str(name): t for name, t in starts.items() if t is None or _is_time(t)}
    best = found.get("iteration_time_ns")
    trace = found.get("trace")
    points = (
        _thinned([(p[0], p[1]) for p in trace if _is_point(p)])
        if isinstance(trace, list | tuple)
        else []
    )
    proposals, start = found.get("proposals"), found.get("start")
    return {
        "starts": times,
        "best": best if _is_time(best) else None,
        "start": start if isinstance(start, str) else None,
        "proposals": proposals if type(proposals) is int else None,
        "local_optimum": found.get("local_optimum") is True,
        "most": max([1, *(t for t in times.values() if t is not None)]),
        "chart": _steps(points) if len(points) > 1 else None,
    }


def _thinned(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most about 2,000 points of a staircase, the last among them: it is the result."""
    step = -(-len(points) // POINTS_SHOWN) or 1
    return [*points[:-1:step], *points[-1:]]


def _is_time(value: Any) -> bool:
    return type(value) is int and 0 <= value < 10**15


def _is_point(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and type(value[0]) is int
        and 0 <= value[0] < 10**15
        and _is_time(value[1])
    )


def _steps(points: Sequence[tuple[int, int]]) -> Json:
    """A falling staircase in a square of 1000 by 1000."""
    last = max(points[-1][0], 1)
    most = max(ns for _, ns in points)
    path = ""
    for proposals, ns in points:
        x, y = 1000 * min(proposals / last, 1), 1000 * (1 - ns / max(most, 1) * 0.94)
        path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}"
    return {
        "path": Markup(path),  # numbers, however many
        "proposals": last,
        "most": most,
        "best": points[-1][1],
        "y_best": 1000 * (1 - points[-1][1] / max(most, 1) * 0.94),
    }


def sources_view(timeline: Timeline, strategy: ResolvedStrategy) -> list[Json]:
    """Whose word the times of tasks are: a row a cost model."""
    problem = timeline.problem
    rows = timeline.tasks[(timeline.tasks["hop"] < 0)]
    counts: dict[str, list[int]] = {}
    known: dict[tuple[int, int], str] = {}
    for row in rows:
        if ROWS[row["pass"]].price != "of_task":
            continue
        key = (int(row["index"]), int(row["device"]))
        if key not in known:
            op = problem.graph.operators[key[0]]
            known[key] = problem.source_of(op, strategy[op.name].degrees, key[1])
        entry = counts.setdefault(known[key], [0, 0])
        entry[0] += 1
        entry[1] += int(row["end_time"] - row["start_time"])
    total = max(sum(ns for _, ns in counts.values()), 1)
    return [
        {"source": source, "tasks": tasks, "ns": ns, "share": ns / total}
        for source, (tasks, ns) in sorted(counts.items())
    ]


def times_view(rows: Sequence[Json], facts: Json, measured: Mapping[str, Any] | None) -> Json:
    """Iterations of several strategies, the slowest first; this one is marked."""
    bars = [
        {
            "name": row["strategy"] + (f" ({row['same_as']})" if row.get("same_as") else ""),
            "ns": row["iteration_time_ns"],
            "moved": row["bytes_moved"],
            "memory": row["allocated_bytes"],
            "balance": row["load_balance"],
            "fits": row["fits"],
            "own": False,
        }
        for row in rows
        if row["exists"]
    ]
    bars.sort(key=lambda bar: -bar["ns"])
    bars.append(
        {
            "name": "this strategy",
            "ns": facts["iteration_time_ns"],
            "moved": facts["bytes_moved"],
            "memory": facts["allocated_bytes"],
            "balance": facts["load_balance"],
            "fits": facts["fits"],
            "own": True,
        }
    )
    measured_ns = measured["iteration_time_ns"] if measured else None
    data = facts["data_parallel_time_ns"]
    for bar in bars:
        bar["speedup"] = data / bar["ns"] if data else None
    # Bars are for telling those apart that matter: ones that are far slower are cut. Data
    # parallelism, by which all are judged, is shown up to more.
    own = max(min(bar["ns"] for bar in bars), facts["iteration_time_ns"])
    near = max(BARS_UP_TO * own, min(data or 0, DATA_UP_TO * own))
    most = max(1, measured_ns or 0, *(bar["ns"] for bar in bars if bar["ns"] <= near))
    return {
        "bars": bars,
        "most": most,
        "beyond": any(bar["ns"] > most for bar in bars),
        "measured_ns": measured_ns,
        "missing": [(row["strategy"], row["reason"]) for row in rows if not row["exists"]],
    }


def machine_view(timeline: Timeline) -> Json:
    """What the machine's description says."""
    topology = timeline.problem.topology
    models: dict[tuple[str, str], int] = {}
    for device in topology.devices:
        models[device.model, device.kind] = models.get((device.model, device.kind), 0) + 1
    kinds = {(link.kind, link.bandwidth, link.latency_ns): None for link in topology.links}
    return {
        "name": topology.name,
        "description": topology.description,
        "nodes": topology.nodes,
        "devices": [(number, model, kind) for (model, kind), number in models.items()],
        "links": list(kinds),
    }
