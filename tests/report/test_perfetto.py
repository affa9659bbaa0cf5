"""Trace files: what is in them, exactly; and the tracks of a machine."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexlegion import UserError
from flexlegion.profiling.machines import load_machine
from flexlegion.report.perfetto import Count, Slice, Track, slices_of, tracks_of, write_trace


def events_of(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_text(), parse_float=Decimal)
    assert document["displayTimeUnit"] == "ns"
    return document["traceEvents"]


def test_a_small_trace(tmp_path: Path) -> None:
    """A process and a thread get their numbers, names and order when they first come."""
    path = tmp_path / "trace.json"
    slices = [
        Slice("gpu:0", "node 0", "forward a [0]", 0, 1_500, "forward", {"bytes": 8}),
        Slice("gpu:1", "node 0", "forward a [1]", 1_234_567, 1),
        Slice("gpu:0", "node 0", 'a "quoted"\nname', 1_500, 0),
    ]
    counts = [Count("node 0", "memory of gpu:0 (bytes)", 10, 64)]
    write_trace(path, slices, counts, about={"model": "a", "machine": "p100x2"})
    assert path.read_text() == (
        '{"displayTimeUnit":"ns","otherData":{"model":"a","machine":"p100x2"},"traceEvents":[\n'
        '{"ph":"M","pid":1,"name":"process_name","args":{"name":"node 0"}},\n'
        '{"ph":"M","pid":1,"name":"process_sort_index","args":{"sort_index":1}},\n'
        '{"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"gpu:0"}},\n'
        '{"ph":"M","pid":1,"tid":2,"name":"thread_sort_index","args":{"sort_index":2}},\n'
        '{"ph":"X","pid":1,"tid":2,"ts":0.000,"dur":1.500,"name":"forward a [0]","cat":"forward",'
        '"args":{"bytes":8}},\n'
        '{"ph":"M","pid":1,"tid":3,"name":"thread_name","args":{"name":"gpu:1"}},\n'
        '{"ph":"M","pid":1,"tid":3,"name":"thread_sort_index","args":{"sort_index":3}},\n'
        '{"ph":"X","pid":1,"tid":3,"ts":1234.567,"dur":0.001,"name":"forward a [1]","cat":"task",'
        '"args":{}},\n'
        '{"ph":"X","pid":1,"tid":2,"ts":1.500,"dur":0.000,"name":"a \\"quoted\\"\\nname",'
        '"cat":"task","args":{}},\n'
        '{"ph":"C","pid":1,"ts":0.010,"name":"memory of gpu:0 (bytes)","args":{"value":64}}\n'
        "]}\n"
    )


def test_nothing_at_all(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(path, [])
    assert events_of(path) == []


def test_tracks_come_in_the_order_that_is_given(tmp_path: Path) -> None:
    """Idle ones, too; tracks of one name in two processes are two."""
    path = tmp_path / "trace.json"
    tracks = [Track("b", "y"), Track("b", "x"), Track("a", "y"), Track("b", "y")]
    write_trace(path, [Slice("x", "b", "task", 0, 1)], tracks=tracks)
    events = events_of(path)
    process = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    threads = [
        (e["pid"], e["tid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"
    ]
    assert [name for _, _, name in threads] == ["y", "x", "y"]
    assert [pid for pid, _, _ in threads] == [process["b"], process["b"], process["a"]]
    order = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    assert [order[tid] for _, tid, _ in threads] == sorted(order.values())
    numbers = [tid for _, tid, _ in threads] + list(process.values())
    assert len(set(numbers)) == len(numbers)
    assert (events[-1]["pid"], events[-1]["tid"]) == threads[1][:2]


@given(times=st.lists(st.tuples(st.integers(-(2**62), 2**62), st.integers(0, 2**62)), max_size=9))
def test_no_nanosecond_is_lost(
    tmp_path_factory: pytest.TempPathFactory, times: list[tuple[int, int]]
) -> None:
    """Measured times may start before zero."""
    path = tmp_path_factory.mktemp("t") / "trace.json"
    write_trace(path, (Slice("d", "n", "t", start, duration) for start, duration in times))
    found = [(e["ts"] * 1000, e["dur"] * 1000) for e in events_of(path) if e["ph"] == "X"]
    assert found == times


def test_a_trace_is_not_kept_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    def many() -> Iterator[Slice]:
        for i in range(50_000):
            yield Slice(f"gpu:{i % 4}", "node 0", f"task {i}", i, 1, args={"bytes": i})

    tracemalloc.start()
    write_trace(path, many())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 4_000_000
    assert peak < 500_000


def test_where_nothing_can_be(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "trace.json"
    with pytest.raises(UserError, match="the trace cannot be written there"):
        write_trace(path, [])


def test_slices_that_fail_leave_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        write_trace(path, [Slice("d", "n", "t", 0, 1, args={"bytes": {1}})])
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


# On a machine


def test_tracks_of_a_machine() -> None:
    """Links within a node belong to it, those that leave it to the network."""
    topology = load_machine("p100x8")
    tracks = tracks_of(topology)
    assert [name for process, name in tracks if process == "node 1"][:4] == [
        "gpu:4",
        "gpu:5",
        "gpu:6",
        "gpu:7",
    ]
    assert list(dict.fromkeys(process for process, _ in tracks)) == ["node 0", "node 1", "network"]
    assert sorted(name for _, name in tracks) == sorted([*topology.names.names, *topology.channels])
    network = [name for process, name in tracks if process == "network"]
    assert network
    assert all("ib" in name.split(" -> ") for name in network)
    # One box has its adapters, too.
    assert {p for p, _ in tracks_of(load_machine("v100x8"))} == {"node 0", "network"}


def test_rows_of_a_machine(tmp_path: Path) -> None:
    topology = load_machine("p100x8")
    link = topology.route("gpu:5", "gpu:0")[1].channel
    rows = [
        ("gpu:5", "forward fc [5]", 0, 1_001, {"exe_time_ns": 1_001}),
        (link, "fc.output [5] -> gpu:0", 1_001, 20, {"bytes": 24}),
    ]
    path = tmp_path / "trace.json"
    write_trace(path, slices_of(rows, topology), tracks=tracks_of(topology))
    events = events_of(path)
    track = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    process = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert len(track) == len(topology.names) + len(topology.channels)
    task, transfer = (e for e in events if e["ph"] == "X")
    assert (process[task["pid"]], track[task["tid"]]) == ("node 1", "gpu:5")
    assert (task["name"], task["cat"]) == ("forward fc [5]", "task")
    assert (task["dur"], task["args"]) == (Decimal("1.001"), {"exe_time_ns": 1_001})
    assert (process[transfer["pid"]], track[transfer["tid"]]) == ("network", link)
    assert (transfer["ts"], transfer["dur"]) == (Decimal("1.001"), Decimal("0.020"))
    assert (transfer["cat"], transfer["args"]) == ("transfer", {"bytes": 24})


def test_the_runtime_has_a_track(tmp_path: Path) -> None:
    """Of a task's time, what the runtime takes stands on a track of its own, where it begins."""
    topology = load_machine("p100x4")
    details = {"exe_time_ns": 900, "runtime_time_ns": 100}
    rows = [("gpu:1", "forward fc [1]", 50, 1_000, details)]
    path = tmp_path / "trace.json"
    write_trace(path, slices_of(rows, topology), tracks=tracks_of(topology))
    events = events_of(path)
    track = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    task, runtime = (e for e in events if e["ph"] == "X")
    assert (track[runtime["tid"]], runtime["pid"]) == ("runtime on gpu:1", task["pid"])
    assert (runtime["name"], runtime["cat"]) == ("launching forward fc [1]", "runtime")
    assert (runtime["ts"], runtime["dur"]) == (Decimal("0.050"), Decimal("0.100"))
