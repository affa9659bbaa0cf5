"""``flexlegion machine list`` and ``flexlegion machine show``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flexlegion.cli.main import main
from flexlegion.machine.files import shipped
from flexlegion.profiling.machines import load_machine

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *args: str) -> str:
    assert main(["machine", *args]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def loaded(text: str) -> dict[str, Any]:
    document = json.loads(text)
    assert isinstance(document, dict)
    assert text.count("\n") == 1
    return document


def test_list(capsys: Capture) -> None:
    out = run(capsys, "list")
    for name, machine in shipped().items():
        assert f"{name}xN" in out
        assert all(kind in out for kind in machine.device_types)
    assert "N = 1 to 4, 8, 12 ... 64" in out
    machines = loaded(run(capsys, "list", "--json"))["machines"]
    assert [machine["name"] for machine in machines] == list(shipped())
    p100 = next(machine for machine in machines if machine["name"] == "p100")
    assert p100["sizes"][-1] == 64
    assert p100["link_types"]["nvlink"]["bandwidth"] == 20_000_000_000


def test_show(capsys: Capture) -> None:
    """Device lines, what each is linked to, and routes; nodes that are alike are not repeated."""
    lines = [line.strip(" │├└─") for line in run(capsys, "show", "p100x8").splitlines()]
    assert lines[0] == "p100x8: 8 devices, 2 nodes"
    start = lines.index("gpu:0: P100, 15.89 GiB at 732 GB/s, TFLOP/s float64 5.3, float32 10.6")
    assert lines[start + 1 : start + 3] == [
        "nvlink (20 GB/s each direction, 700 ns): gpu:1, gpu:2, gpu:3",
        "pcie (15.75 GB/s each direction, 500 ns): node:0/host:0",
    ]
    assert "node:1: like node:0, with gpu:4 to gpu:7" in lines
    assert "switch ib" in lines
    assert lines[lines.index("routes from gpu:0") + 1 :] == [
        "to gpu:1: 20 GB/s, 700 ns: gpu:0 - gpu:1",
        "to gpu:2: 20 GB/s, 700 ns: gpu:0 - gpu:2",
        "to gpu:3: 20 GB/s, 700 ns: gpu:0 - gpu:3",
        "to gpu:4: 12.5 GB/s, 2000 ns: gpu:0 - node:0/host:0 - ib - node:1/host:0 - gpu:4",
    ]


@pytest.mark.parametrize("name", ["k80x64", "v100x8", "a100x4", "h100x1", "h200x2"])
def test_show_every_kind(capsys: Capture, name: str) -> None:
    out = run(capsys, "show", name)
    assert out.startswith(f"{name}: ")
    assert max(map(len, out.splitlines())) <= 160
    assert ("routes from gpu:0" in out) == (name != "h100x1")


def test_show_json(capsys: Capture) -> None:
    topology = load_machine("k80x8")
    document = loaded(run(capsys, "show", "k80x8", "--json"))
    assert [device["name"] for device in document["devices"]] == topology.names.names
    assert document["nodes"] == 2
    assert document["links"][0] == {
        "name": "pcie gpu:0 - node:0/plx:0",
        "kind": "pcie",
        "source": "gpu:0",
        "destination": "node:0/plx:0",
        "bandwidth": 15_750_000_000,
        "latency_ns": 500,
        "shared": False,
    }
    assert document["routes"][0] == {
        "source": "gpu:0",
        "destination": "gpu:1",
        "channels": ["gpu:0 -> node:0/plx:0", "node:0/plx:0 -> gpu:1"],
        "bandwidth": 15_750_000_000,
        "latency_ns": 1000,
    }
    assert [route["destination"] for route in document["routes"]] == [
        "gpu:1",
        "gpu:2",
        "gpu:3",
        "gpu:4",
    ]


def example_of_docs() -> str:
    """The machine file of the page about machines."""
    text = (Path(__file__).parents[2] / "docs" / "machines.md").read_text()
    return text.split("```json")[1].split("```")[0]


def test_show_processors_that_share_a_memory(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(example_of_docs())
    out = run(capsys, "show", str(path))
    assert "cpu:0 to cpu:15 in node:0/ram: core, " in out
    assert "both directions together" in out
    assert "to gpu:2: 12.5 GB/s" in out


@pytest.mark.parametrize("args", [["--help"], ["list", "--help"], ["show", "--help"]])
def test_help_has_an_example_that_works(capsys: Capture, args: list[str]) -> None:
    assert main(["machine", *args]) == 0
    text = " ".join(capsys.readouterr().out.split())
    example = text.split("example: flexlegion ")[1]
    assert example.startswith("machine ")
    assert main(example.split()) == 0


@pytest.mark.parametrize("args", [[], ["fly"], ["show"], ["show", "p100x4", "x"], ["list", "x"]])
def test_usage(capsys: Capture, args: list[str]) -> None:
    assert main(["machine", *args]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "flexlegion machine" in error
