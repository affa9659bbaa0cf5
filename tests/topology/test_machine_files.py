"""Measured machines as files: what is folded and expanded again is the same machine."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from local_machines import local

from flexlegion import UserError
from flexlegion.cli.main import main
from flexlegion.machine.files import parse_machine
from flexlegion.machine.folding import check_nodes, machine_document
from flexlegion.machine.topology import Topology
from flexlegion.profiling.machines import load_machine

CASES: dict[str, tuple[Any, ...]] = {
    "one rank": (1, 2, 0, ["a"], False),
    "a processor a rank": (2, 1, 0, ["a", "a"], False),
    "processors share a rank's memory": (2, 3, 0, ["a", "a"], False),
    "nodes": (2, 1, 0, ["a", "b"], False),
    "ranks of nodes": (4, 2, 0, ["a", "a", "b", "b"], False),
    "GPUs through the host": (1, 1, 3, ["a"], False),
    "GPUs of ranks": (2, 1, 2, ["a", "a"], True),
    "GPUs of nodes": (2, 2, 2, ["a", "b"], True),
    "GPUs of ranks of nodes": (4, 1, 2, ["a", "a", "b", "b"], False),
}


def written(topology: Topology, nodes: int) -> Topology:
    """The machine that its file describes."""
    document = json.loads(json.dumps(machine_document(topology, "measured", "here", nodes)))
    return parse_machine(document, "my", "my.json").topology()


def between(topology: Topology, a: str, b: str) -> tuple[int | None, int]:
    return topology.bandwidth(a, b), topology.latency_ns(a, b)


@pytest.mark.parametrize("case", CASES)
def test_the_same_machine(case: str) -> None:
    """Devices are the same, and the ways between them are as wide and as long."""
    topology = local(*CASES[case])
    again = written(topology, topology.nodes)
    for old, new in zip(topology.devices, again.devices, strict=True):
        assert (old.name, old.kind, old.model, old.node) == (
            new.name,
            new.kind,
            new.model,
            new.node,
        )
        assert (old.memory_bytes, old.memory_bandwidth) == (new.memory_bytes, new.memory_bandwidth)
        assert old.peak_flops == new.peak_flops
    for a, b in permutations([device.name for device in topology.devices], 2):
        assert between(topology, a, b) == between(again, a, b), (a, b)
    shared = [link.shared for link in topology.links if link.kind == "ranks"]
    assert [link.shared for link in again.links if link.kind == "ranks"] == shared


@pytest.mark.parametrize("case", ["nodes", "ranks of nodes", "GPUs of ranks of nodes"])
def test_extended(case: str) -> None:
    """From two nodes to sixteen: any two are as the two that were measured."""
    topology = local(*CASES[case])
    many = written(topology, 16)
    assert many.nodes == 16
    assert len(many.devices) == 8 * len(topology.devices)
    measured = {node: [d.name for d in topology.devices if d.node == node] for node in range(2)}
    for first, second in [(0, 1), (3, 15)]:
        mine, others = ([d.name for d in many.devices if d.node == n] for n in (first, second))
        for a, its in zip(measured[0], mine, strict=True):
            for b, theirs in zip(measured[1], others, strict=True):
                assert between(many, its, theirs) == between(topology, a, b)


def test_fewer_nodes() -> None:
    topology = written(local(*CASES["nodes"]), 1)
    assert [device.name for device in topology.devices] == ["cpu:0"]


@pytest.mark.parametrize("nodes", [0, -1, 20000])
def test_numbers_of_nodes(nodes: int) -> None:
    with pytest.raises(UserError, match=f"--nodes has to be from 1 to 16384, but is {nodes}"):
        check_nodes(nodes, 2)


def test_a_network_has_to_be_known() -> None:
    with pytest.raises(UserError, match="--nodes 16 needs to know the network, but all ranks run"):
        machine_document(local(*CASES["a processor a rank"]), "", "", 16)


def test_nodes_that_differ() -> None:
    three = local(3, 1, 0, ["a", "a", "b"], False)
    with pytest.raises(UserError, match="node 1 has other devices than node 0, but a machine file"):
        machine_document(three, "", "", 2)


def test_search_on_an_extended_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is one like others: `machine show` and `search` take it."""
    path = tmp_path / "my.json"
    document = machine_document(local(*CASES["GPUs of nodes"]), "8 nodes, measured", "here", 8)
    path.write_text(json.dumps(document))
    assert main(["machine", "show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "my: 32 devices, 8 nodes" in out
    assert "8 nodes, measured" in out
    assert "EPYC" in out
    search = ["search", "--model", "mlp", "--size", "hidden=64x32", "--batch-size", "32"]
    options = ["--machine", str(path), "--proposals", "50", "--chains", "1"]
    assert main([*search, *options, "--out", str(tmp_path / "s.json")]) == 0
    assert "gpu:15" in (tmp_path / "s.json").read_text()


def test_models_of_device_types(tmp_path: Path) -> None:
    """A type's model is its name unless the file says more."""
    rates = {"memory_bytes": 1, "peak_flops": {"float32": 1}, "memory_bandwidth": 1}
    document = {
        "schema_version": 1,
        "description": "",
        "nodes": 1,
        "device_types": {
            "A": {"kind": "cpu", **rates},
            "B": {"kind": "cpu", "model": "a long name (1-2-3)", **rates},
        },
        "link_types": {},
        "node": {
            "devices": [
                {"type": "A", "count": 1, "memory": "ram"},
                {"type": "B", "count": 1, "memory": "ram"},
            ]
        },
    }
    path = tmp_path / "m.json"
    path.write_text(json.dumps(document))
    assert [d.model for d in load_machine(path).devices] == ["A", "a long name (1-2-3)"]


def test_wrong_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, and status 2, before anything starts."""
    out = str(tmp_path / "my.json")
    assert main(["machine", "measure", "--out", out, "--nodes", "0"]) == 2
    assert "--nodes has to be from 1 to 16384, but is 0" in capsys.readouterr().err
    missing = str(tmp_path / "no" / "my.json")
    assert main(["machine", "measure", "--out", missing]) == 2
    assert "the machine file cannot be written there" in capsys.readouterr().err
