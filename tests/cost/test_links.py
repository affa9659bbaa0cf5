"""Rates of links: from measured messages, in the data base, by what they depend on."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexlegion.cost.profile_db import ProfileDB
from flexlegion.cost.records import LinkRates
from flexlegion.machine.devices import Devices
from flexlegion.machine.running import RunningMachine
from flexlegion.profiling import local_links, transport
from flexlegion.profiling.gpus import Gpus
from flexlegion.profiling.local_links import Layout, MeasuredLinks, Rates, layout_of, rates_of
from flexlegion.profiling.timing import offset_of


def test_directions_that_share() -> None:
    """Where both directions together carry little more than one alone, they share what they do."""
    alone = LinkRates(1000, 7)
    assert rates_of(alone, LinkRates(950, 9)) == Rates(1000, 7)
    assert rates_of(alone, LinkRates(760, 9)) == Rates(1000, 7)
    assert rates_of(alone, LinkRates(600, 9)) == Rates(1200, 7, shared=True)
    assert rates_of(alone, LinkRates(480, 9)) == Rates(960, 7, shared=True)


def layout(hosts: list[str]) -> Layout:
    """One processor on each host."""
    ranks = list(range(len(hosts)))
    devices = Devices([f"cpu:{rank}" for rank in ranks])
    sizes, threads = [1 << 30] * len(hosts), [1] * len(hosts)
    machine = RunningMachine(devices, len(hosts), 0, ranks, ranks, sizes, threads)
    return layout_of(machine, hosts, ["A"] * len(hosts), {})


def test_what_rates_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are measured again with other software, and between nodes with other adapters."""
    measured: list[bool] = []

    def measure_link(*_: int, both_ways: bool = False) -> LinkRates:
        measured.append(both_ways)
        return LinkRates(500 if both_ways else 1000, len(measured))

    software, adapters = "UCX 1", "eth0 10 Mbit/s"
    monkeypatch.setattr(local_links, "measure_link", measure_link)
    monkeypatch.setattr(local_links, "agreed", lambda known, _: list(known))
    monkeypatch.setattr(local_links, "running_gpus", lambda: Gpus({}, {}))
    monkeypatch.setattr(transport, "software", lambda: software)
    monkeypatch.setattr(transport, "adapters", lambda: adapters)
    with ProfileDB(tmp_path / "p.sqlite") as db:

        def rates(hosts: list[str], measure: bool = True) -> Rates:
            path = "nodes" if len(set(hosts)) == 2 else "ranks of a node"
            return MeasuredLinks(layout(hosts), db, measure)(path, 0, 1)

        assert rates(["a", "a"]) == Rates(1000, 1, shared=True)
        assert rates(["a", "a"]) == Rates(1000, 1, shared=True)
        assert measured == [False, True]
        assert db.link("ranks of a node; UCX 1", "A", "A") == LinkRates(1000, 1)
        assert db.link("ranks of a node; UCX 1; both ways", "A", "A") == LinkRates(500, 2)
        adapters = "eth0 25 Mbit/s"  # between nodes alone
        assert rates(["a", "a"]).latency_ns == 1
        assert rates(["a", "b"]).latency_ns == 3
        assert db.link("nodes; UCX 1; eth0 25 Mbit/s", "A", "A") == LinkRates(1000, 3)
        adapters = "mlx5_0 100 Gb/sec"
        assert rates(["a", "b"], measure=False) == Rates(1_250_000_000, 30_000)  # an estimate
        assert rates(["a", "b"]).latency_ns == 5
        software = "UCX 2"
        assert rates(["a", "a"]).latency_ns == 7
        assert len(measured) == 8


def test_settings_of_the_network() -> None:
    environment = {
        "LEGION_DEFAULT_ARGS": " -ll:bgwork 1 ",
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "eth0",
        "UCX_LOG_LEVEL": "error",
        "PATH": "/bin",
    }
    assert transport.settings(environment) == [
        "-ll:bgwork 1",
        "UCX_NET_DEVICES=eth0",
        "UCX_TLS=tcp,self",
    ]
    assert transport.settings({}) == []


def test_adapters(tmp_path: Path) -> None:
    """Those with a device behind them; their rates where the kernel knows them."""
    assert transport.adapters(tmp_path) == "no adapters"
    for name, speed, device in [("eth0", "10000", True), ("eth1", "-1", True), ("lo", "1", False)]:
        folder = tmp_path / "net" / name
        folder.mkdir(parents=True)
        (folder / "speed").write_text(f"{speed}\n")
        if device:
            (folder / "device").mkdir()
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    (tmp_path / "infiniband" / "mlx5_0" / "device").mkdir()
    assert transport.adapters(tmp_path) == (
        "mlx5_0 100 Gb/sec (4X EDR), eth0 10000 Mbit/s, eth1 of unknown rate"
    )


def test_offsets_of_clocks() -> None:
    """The fastest message tells; what it cannot tell from 0 is 0."""
    ahead = 5_000_000
    messages = [(0, 700_000 + ahead, 900_000), (1_000_000, 1_020_000 + ahead, 1_040_000)]
    assert offset_of(messages) == ahead
    assert offset_of([(left, noted - 2 * ahead, back) for left, noted, back in messages]) == -ahead
    assert offset_of([(0, 30, 40)]) == 0
    assert offset_of([(0, 41, 40)]) == 21
