"""Machine files: the shipped ones with their golden figures, and how files expand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexlegion.machine.devices import Devices
from flexlegion.machine.files import PLATFORMS, read_machine, shipped
from flexlegion.machine.topology import Topology
from flexlegion.profiling.machines import load_machine

SIZES = {name: machine.sizes for name, machine in shipped().items()}


def between(topology: Topology, a: int, b: int) -> list[str]:
    """The vertices on the way between two GPUs."""
    route = topology.route(f"gpu:{a}", f"gpu:{b}")
    return [hop.destination for hop in route[:-1]]


def test_shipped_machines() -> None:
    cluster = (1, 2, 3, *range(4, 65, 4))
    boxes = (*range(1, 8), *range(8, 16385, 8))
    assert {
        "a100": boxes,
        "b200": boxes,
        "gb200": (*range(1, 72), *range(72, 9217, 72)),
        "h100": boxes,
        "h200": boxes,
        "k80": cluster,
        "mi300": boxes,
        "p100": cluster,
        "v100": boxes,
        "v5e": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    } == SIZES


@pytest.mark.parametrize(
    ("name", "size"), [(n, s) for n, sizes in SIZES.items() for s in (*sizes[:11], sizes[-1])]
)
def test_sizes_load(name: str, size: int) -> None:
    topology = load_machine(f"{name}x{size}")
    assert topology.name == f"{name}x{size}"
    assert topology.names.names == Devices.of(gpus=size).names
    each = shipped()[name].gpus_per_node
    assert topology.nodes == -(-size // each)
    assert [device.node for device in topology.devices] == [i // each for i in range(size)]
    for device in topology.devices:
        assert device.memory == device.name
        there, back = (
            topology.route("gpu:0", device.name),
            topology.route(device.name, "gpu:0"),
        )
        # In a torus, both ways go along the first dimension first.
        assert there == tuple(~hop for hop in reversed(back)) or name == "v5e"
        assert (there == ()) == (device.name == "gpu:0")
    assert {
        hop.channel for d in topology.devices for hop in topology.route("gpu:0", d.name)
    } <= set(topology.channels)


@pytest.mark.parametrize("path", sorted(PLATFORMS.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_files_name_their_sources(path: Path) -> None:
    document = json.loads(path.read_text())
    assert len(document["source"]) > 20
    for kinds in (document["device_types"], document["link_types"]):
        for kind in kinds.values():
            assert len(kind["source"]) > 20
    for kind in document["link_types"].values():
        assert "estimate" in kind["source"]  # of the latency
    assert len(path.read_text().splitlines()) < 100


# Section 8.1 and Figure 6 of the paper


def test_p100_cluster() -> None:
    """Four P100 a node, linked by NVLink; nodes over 100 Gbit/s EDR Infiniband."""
    topology = load_machine("p100x16")
    assert topology.nodes == 4  # as in the paper
    assert {device.model for device in topology.devices} == {"P100"}
    assert len(topology.links) == 4 * (6 + 4 + 1 + 1)
    for a in range(4):
        for b in range(4):
            if a != b:
                (hop,) = topology.route(f"gpu:{a}", f"gpu:{b}")
                assert (hop.link.kind, hop.link.bandwidth) == ("nvlink", 20_000_000_000)
    assert between(topology, 0, 4) == ["node:0/host:0", "ib", "node:1/host:0"]
    assert len(between(topology, 3, 15)) == 5  # through the second CPU of each node
    for a in range(4):
        for b in range(4, 16):
            assert topology.bandwidth(f"gpu:{a}", f"gpu:{b}") == 12_500_000_000
    # Whatever goes to another node shares the node's one link to the network.
    out = [hop for a in range(4) for b in (4, 8) for hop in topology.route(f"gpu:{a}", f"gpu:{b}")]
    assert {hop.channel for hop in out if hop.destination == "ib"} == {"node:0/host:0 -> ib"}
    device = topology.device("gpu:0")
    assert device.peak_flops["float32"] == 10_600_000_000_000
    assert device.memory_bandwidth == 732_000_000_000
    assert 15.5 * 2**30 < device.memory_bytes < 16 * 2**30


def test_k80_cluster() -> None:
    """Adjacent GPUs on a PCI-e switch, all below a shared one; 56 Gbit/s between 16 nodes."""
    topology = load_machine("k80x64")
    assert topology.nodes == 16
    assert between(topology, 0, 1) == ["node:0/plx:0"]
    assert between(topology, 2, 3) == ["node:0/plx:1"]
    assert between(topology, 0, 2) == ["node:0/plx:0", "node:0/pcie", "node:0/plx:1"]
    assert between(topology, 4, 5) == ["node:1/plx:0"]
    assert between(topology, 0, 4) == [
        *("node:0/plx:0", "node:0/pcie", "node:0/host"),
        "ib",
        *("node:1/host", "node:1/pcie", "node:1/plx:0"),
    ]
    assert topology.bandwidth("gpu:0", "gpu:1") == 15_750_000_000
    assert topology.bandwidth("gpu:0", "gpu:63") == 6_800_000_000
    # "Asymmetric connections between GPUs" (Section 8.5): neighbours are nearer.
    assert topology.latency_ns("gpu:0", "gpu:1") < topology.latency_ns("gpu:0", "gpu:2")
    # Both pairs reach the CPUs over one link.
    up = [topology.route(f"gpu:{a}", "gpu:4")[2].channel for a in range(4)]
    assert set(up) == {"node:0/pcie -> node:0/host"}
    assert topology.device("gpu:0").peak_flops["float32"] == 4_365_000_000_000
    assert "float16" not in topology.device("gpu:0").peak_flops


# Boxes


def test_dgx1_is_a_hybrid_cube_mesh() -> None:
    """Each V100 has six NVLinks, to four others; the other three are reached by PCIe."""
    topology = load_machine("v100x8")
    for a in range(8):
        lines, kinds = 0, Counter[str]()
        for b in range(8):
            if a != b:
                route = topology.route(f"gpu:{a}", f"gpu:{b}")
                kinds["nvlink" if len(route) == 1 else "pcie"] += 1
                lines += route[0].link.bandwidth // 25_000_000_000 if len(route) == 1 else 0
        assert (lines, kinds) == (6, Counter(nvlink=4, pcie=3))
    assert topology.bandwidth("gpu:0", "gpu:3") == 50_000_000_000
    assert topology.bandwidth("gpu:0", "gpu:5") == 15_750_000_000
    assert between(topology, 0, 5) == [
        *("node:0/plx:0", "node:0/host:0"),
        *("node:0/host:1", "node:0/plx:2"),
    ]


@pytest.mark.parametrize(
    ("name", "bandwidth", "memory", "float32", "bfloat16"),
    [
        ("a100", 300, 2039, 19.5, 312),
        ("h100", 450, 3350, 67, 989),
        ("h200", 450, 4800, 67, 989),
    ],
)
def test_nvswitch_boxes(
    name: str, bandwidth: int, memory: int, float32: float, bfloat16: float
) -> None:
    topology = load_machine(f"{name}x8")
    for a in range(8):
        for b in range(8):
            if a != b:
                assert between(topology, a, b) == ["node:0/nvswitch"]
                assert topology.bandwidth(f"gpu:{a}", f"gpu:{b}") == bandwidth * 10**9
    device = topology.device("gpu:0")
    assert device.memory_bandwidth == memory * 10**9
    assert device.peak_flops["float32"] == float32 * 1e12
    assert device.peak_flops["bfloat16"] == bfloat16 * 1e12


# Clusters of boxes


@pytest.mark.parametrize(
    ("name", "adapters", "bandwidth"),
    [("v100", 4, 12_500), ("a100", 8, 25_000), ("h100", 8, 50_000), ("h200", 8, 50_000)],
)
def test_clusters_of_boxes(name: str, adapters: int, bandwidth: int) -> None:
    """Boxes are joined by their adapters, one a GPU where there are as many."""
    topology = load_machine(f"{name}x512")
    assert topology.nodes == 64
    for b in (8, 9, 511):
        assert topology.bandwidth("gpu:0", f"gpu:{b}") == bandwidth * 10**6
    out = {
        hop.channel
        for a in range(8)
        for hop in topology.route(f"gpu:{a}", f"gpu:{504 + a}")
        if hop.destination == "ib"
    }
    assert len(out) == adapters


@pytest.mark.parametrize("name", ["v100", "a100", "h100", "h200"])
def test_a_box_is_the_same_in_a_cluster(name: str) -> None:
    """Nothing within a box goes by the network."""
    for topology in (load_machine(f"{name}x8"), load_machine(f"{name}x64")):
        first = topology.nodes * 8 - 8
        for a in range(8):
            for b in range(8):
                route = topology.route(f"gpu:{first + a}", f"gpu:{first + b}")
                assert "infiniband" not in {hop.link.kind for hop in route}


# Expansion


def document(nodes: int = 2, gpus: int = 2, cpus: int = 3) -> dict[str, Any]:
    """Nodes of GPUs and of CPU processors that share a memory, at one switch."""
    rate = {"peak_flops": {"float32": 1e12}, "memory_bandwidth": 1e9}
    return {
        "schema_version": 1,
        "description": "a machine for tests",
        "nodes": nodes,
        "device_types": {
            "G": {"kind": "gpu", "memory_bytes": 1000, **rate},
            "C": {"kind": "cpu", "memory_bytes": 5000, **rate},
        },
        "link_types": {
            "bus": {"bandwidth": 4e9, "latency_ns": 10, "shared": True},
            "net": {"bandwidth": 2e9, "latency_ns": 100},
        },
        "node": {
            "devices": [
                {"type": "G", "count": gpus},
                {"type": "C", "count": cpus, "memory": "ram"},
            ],
            "switches": ["host"],
            "links": [["ram", "host", "bus"], *([f"gpu:{i}", "host", "bus"] for i in range(gpus))],
        },
        "network": {"switches": ["ib"], "links": [["host", "ib", "net"]]},
    }


def write(tmp_path: Path, content: dict[str, Any]) -> Path:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content))
    return path


@given(nodes=st.integers(1, 9), gpus=st.integers(1, 5), cpus=st.integers(1, 5))
def test_expansion_counts(
    tmp_path_factory: pytest.TempPathFactory, nodes: int, gpus: int, cpus: int
) -> None:
    path = write(tmp_path_factory.mktemp("m"), document(nodes, gpus, cpus))
    topology = load_machine(path)
    assert topology.name == "mine"
    assert topology.names.names == Devices.of(nodes * cpus, nodes * gpus).names
    assert topology.nodes == nodes
    assert len(topology.links) == nodes * (gpus + 2)
    assert len(topology.switches) == nodes + 1
    assert len(topology.memories) == nodes * (gpus + 1)
    assert len(topology.channels) == nodes * (gpus + 3)  # the network's links have two each
    last = nodes - 1
    assert topology.device(f"gpu:{nodes * gpus - 1}").node == last
    assert topology.device(f"cpu:{nodes * cpus - 1}").memory == f"node:{last}/ram"
    assert topology.route("cpu:0", f"cpu:{cpus - 1}") == ()
    assert len(topology.route("cpu:0", "gpu:0")) == 2
    if nodes > 1:
        assert len(topology.route("cpu:0", f"gpu:{nodes * gpus - 1}")) == 4
        assert topology.bandwidth("cpu:0", f"cpu:{cpus}") == 2 * 10**9
        assert topology.latency_ns("cpu:0", f"cpu:{cpus}") == 220


def test_part_of_a_machine(tmp_path: Path) -> None:
    content = document(nodes=3, gpus=3)
    content["node"]["routes"] = [["gpu:0", "host", "gpu:1"], ["gpu:0", "host", "gpu:2"]]
    machine = read_machine(write(tmp_path, content), "mine")
    assert machine.sizes == (1, 2, 3, 6, 9)
    small = machine.topology(2)
    assert small.names.names == ["cpu:0", "cpu:1", "cpu:2", "gpu:0", "gpu:1"]
    assert small.name == "minex2"
    assert len(small.links) == 4
    assert machine.topology(6).nodes == 2


def test_stated_route_in_every_node(tmp_path: Path) -> None:
    content = document()
    content["node"]["links"].append(["gpu:0", "gpu:1", "net"])
    content["node"]["routes"] = [["gpu:0", "host", "gpu:1"]]
    topology = load_machine(write(tmp_path, content))
    assert between(topology, 0, 1) == ["node:0/host"]
    assert between(topology, 3, 2) == ["node:1/host"]


def test_several_switches_between_nodes(tmp_path: Path) -> None:
    content = document()
    content["network"] = {
        "switches": ["leaf", "spine"],
        "links": [["leaf", "host", "net"], ["leaf", "spine", "net"]],
    }
    topology = load_machine(str(write(tmp_path, content)))
    assert sum(link.kind == "net" for link in topology.links) == 3
    assert between(topology, 0, 2) == ["node:0/host", "leaf", "node:1/host"]


def test_a_machine_of_one_processor(tmp_path: Path) -> None:
    content = document(nodes=1)
    content["node"] = {"devices": [{"type": "C", "count": 1}]}
    content["link_types"] = {}
    del content["network"]
    topology = load_machine(write(tmp_path, content))
    assert topology.names.names == ["cpu:0"]
    assert read_machine(write(tmp_path, content), "mine").sizes == ()
