"""What if one thing of the machine were another: machines as their files would say it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import flexlegion as fl
from flexlegion.machine.files import PLATFORMS, described
from flexlegion.machine.variation import quantities, variation

FEW: dict[str, Any] = {"proposals": 30, "chains": 1, "progress": False}


def values(text: str, machine: str = "p100x8", points: int = 7) -> list[float]:
    return list(variation(text, quantities(*described(machine), 64), points)[1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("network.bandwidth=1GB/s,25e9", [1e9, 12.5e9, 25e9]),
        ("network.bandwidth=x0.5,x2", [6.25e9, 12.5e9, 25e9]),
        ("network.bandwidth=12.5G..50G", [12.5e9, 25e9, 50e9]),
        ("network.latency=1us,0.1 us", [100, 500, 1000]),
        ("link.nvlink.bandwidth=x2", [20e9, 40e9]),
        ("memory=32GB", [17066622976, 32e9]),
        ("flops=x0.5..x2", [0.5, 1, 2]),
        ("network.latency=x0.5,0", [0, 250, 500]),
        ("nodes=1..8", [1, 2, 4, 8]),
        ("nodes=1..6", [1, 2, 4, 6]),
        ("gpus=4,16", [4, 8, 16]),
        ("batch=x2", [64, 128]),
    ],
)
def test_values(text: str, expected: list[float]) -> None:
    """The machine's own are among them."""
    assert values(text, points=3) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("network.bandwidth", "'network.bandwidth' names no values; write what varies, and from"),
        ("network.speed=1..2", "unknown quantity 'network.speed'"),
        ("bandwith=1..2", "unknown quantity 'bandwith'"),
        (
            "network.bandwidth=2GB/s..1GB/s",
            "2GB/s..1GB/s is no range; write the smaller value first",
        ),
        ("network.bandwidth=fast", "a value of network.bandwidth has to be a number, as in 4 or"),
        ("network.bandwidth=-1", "has to be a number, as in 4 or 12.5G, but is '-1'"),
        ("network.bandwidth=0", "a value of network.bandwidth has to be positive, but is '0'"),
        ("flops=2", "a value of flops has to be a factor, as in x0.5, but is '2'"),
        ("nodes=1.5", "nodes is a whole number, but is 1.5"),
        ("memory=", "a value of memory has to be a number, as in 4 or 12.5G, but is ''"),
    ],
)
def test_wrong_values(text: str, message: str) -> None:
    with pytest.raises(fl.UserError, match=message.replace("(", r"\(")):
        values(text)


@pytest.mark.parametrize("points", [1, 0, 101])
def test_wrong_numbers_of_points(points: int) -> None:
    with pytest.raises(fl.UserError, match=f"has to be from 2 to 100, but is {points}"):
        values("memory=x1..x2", points=points)


def changed(tmp_path: Path, **changes: Any) -> Path:
    """The file of two nodes of P100, with other entries by their paths."""
    document = json.loads((PLATFORMS / "p100.json").read_text()) | {"nodes": 2}
    for path, value in changes.items():
        *keys, last = path.split("__")
        place = document
        for key in keys:
            place = place[key]
        place[last] = value
    file = tmp_path / "p100.json"
    file.write_text(json.dumps(document))
    return file


@pytest.mark.parametrize(
    ("vary", "changes"),
    [
        ("network.bandwidth=1GB/s", {"link_types__infiniband__bandwidth": 1e9}),
        ("network.latency=20us", {"link_types__infiniband__latency_ns": 20000}),
        ("link.nvlink.bandwidth=x0.5", {"link_types__nvlink__bandwidth": 10e9}),
        ("memory.bandwidth=100GB/s", {"device_types__P100__memory_bandwidth": 100e9}),
        ("flops=x2", {"device_types__P100__peak_flops": {"float32": 21.2e12}}),
        ("memory=10M", {"device_types__P100__memory_bytes": 10e6}),
    ],
)
def test_as_the_file_would_say(vary: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Known strategies, and what was found, take what `simulate` says of such a machine."""
    result = fl.what_if("lenet", "p100x8", vary, **FEW)
    other = next(point for point in result.points if not point.own)
    machine = changed(tmp_path, **changes)
    for name in ("data", "expert"):
        simulated = fl.simulate("lenet", str(machine), name)
        expected = simulated.iteration_time_ns if simulated.fits else None
        assert other.known_times_ns.get(name) == expected
    own = next(point for point in result.points if point.own)
    assert own.known_times_ns["data"] == fl.simulate("lenet", "p100x8").iteration_time_ns
    for point, at in ((own, "p100x8"), (other, str(machine))):
        if point.strategy is None:
            assert vary.startswith("memory=")
            continue
        assert point.iteration_time_ns is not None
        found = fl.simulate("lenet", at, point.strategy)
        assert found.fits
        assert found.iteration_time_ns == point.iteration_time_ns
        assert point.iteration_time_ns >= point.least_time_ns
        fitting = [t for t in point.known_times_ns.values() if t is not None]
        assert point.iteration_time_ns <= min(fitting)
    if other.strategy is not None and own.strategy is not None:
        kept = fl.simulate("lenet", str(machine), own.strategy)
        assert other.kept_time_ns == kept.iteration_time_ns


def test_where_the_winner_changes() -> None:
    """On a slow network one strategy, on a fast one another; and between, both as told."""
    model = fl.load_model("mlp", 128, {"hidden": [4096, 4096]})
    result = fl.what_if(model, "p100x8", "network.bandwidth=1e8..1e11", points=3, **FEW)
    winners = [point.winner for point in result.points]
    assert (winners[0], winners[-1]) == ("A", "B")
    assert [point.value for point in result.points] == sorted(p.value for p in result.points)
    change = result.changes[0]
    assert (change.before, change.after) == ("A", "B")
    before = winners.index("B") - 1
    low, high = result.points[before].value, result.points[before + 1].value
    assert low <= change.low < change.high <= high
    assert change.high / change.low == pytest.approx((high / low) ** (1 / 16))
    assert "B becomes faster than A" in str(result)
    slow, fast = result.points[0].iteration_time_ns, result.points[-1].iteration_time_ns
    assert slow is not None
    assert fast is not None
    assert slow > fast


def test_numbers_of_nodes_and_batches() -> None:
    nodes = fl.what_if("lenet", "p100x8", "nodes=1..4", **FEW)
    assert [len(point.setting.problem.devices) for point in nodes.points] == [4, 8, 16]
    assert [point.winner for point in nodes.points] == [None] * 3
    assert all(point.strategy is not None for point in nodes.points)
    batches = fl.what_if("lenet", "p100x4", "batch=32,128", **FEW)
    assert [point.setting.network.batch_size for point in batches.points] == [32, 64, 128]
    assert "samples/s" in str(batches)
    model = fl.Model(8)
    model.dense(model.input((16,)), 4)
    with pytest.raises(fl.UserError, match="the batch varies where a model can be built anew"):
        fl.what_if(model, "p100x2", "batch=16", **FEW)


def test_where_nothing_fits() -> None:
    result = fl.what_if("alexnet", "p100x4", "memory=10M,300M", **FEW)
    assert [point.iteration_time_ns is None for point in result.points] == [True, True, False]
    assert "nothing fits below that" in str(result)
    assert result.points[0].reason is not None
    huge = fl.load_model("mlp", 8, {"hidden": [99999, 99999]})
    with pytest.raises(fl.UserError, match="no strategy fits: the weights, their gradients"):
        fl.what_if(huge, "p100x1", "memory=x0.5", **FEW)


def test_machines_without_a_file() -> None:
    topology = fl.load_machine("p100x2")
    for machine in (topology, "local"):
        with pytest.raises(fl.UserError, match="what varies is a machine that a file describes"):
            fl.what_if("lenet", machine, "flops=x2", **FEW)


def test_measured_times_do_not_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of the devices as they are."""
    told = {"measured": 3, "analytic": 1}
    monkeypatch.setattr("flexlegion.sim.problem.Problem.priced_by", lambda *_: told)
    assert fl.what_if("lenet", "p100x2", "memory=x2", **FEW).points
    for name in ("flops", "memory.bandwidth"):
        with pytest.raises(fl.UserError, match=f"so they would not follow {name}; take --costs an"):
            fl.what_if("lenet", "p100x2", f"{name}=x2", **FEW)


def test_page(tmp_path: Path) -> None:
    """A line for each kind of time, a row for each value."""
    result = fl.what_if("lenet", "p100x4", "flops=x0.5..x4", points=4, **FEW)
    page = result.html()
    assert page.count('<path class="curve') == 4
    assert page.count("<tr") == 1 + len(result.points)
    for point in result.points:
        assert f">{result.quantity.told(point.value)}" in page
    result.save(tmp_path / "w.html")
    assert (tmp_path / "w.html").read_text() == page
