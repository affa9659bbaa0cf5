"""Machines on which nothing can be found: that is said before the budget is spent."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Capture, error_of

from flexlegion.machine.files import PLATFORMS
from flexlegion.searches import registry


@pytest.fixture(autouse=True)
def _no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(_: object) -> Any:
        raise AssertionError("it was searched")

    never = registry.NamedSearch(search)
    entries = dict.fromkeys(registry.SEARCHES, never)
    monkeypatch.setattr(registry.SEARCHES, "_entries", entries)


def p100(nodes: int, **changes: Any) -> str:
    """A machine file, of whose devices something is otherwise."""
    document = json.loads((PLATFORMS / "p100.json").read_text())
    document["nodes"] = nodes
    for device in document["device_types"].values():
        device |= changes
    return json.dumps(document)


@pytest.mark.parametrize("command", ["compare", "search"])
@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (p100(2, memory_bytes=1), "no strategy fits: the weights"),
        (p100(2, peak_flops={"float32": 1}), "the longest time that is simulated"),
        (p100(2048), "at most 4,096 can be searched for"),
    ],
    ids=["small", "slow", "large"],
)
def test_absurd(command: str, machine: str, message: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "m.json"
    file.write_text(machine)
    out = [] if command == "compare" else ["--out", str(tmp_path / "s.json")]
    assert message in error_of(capsys, command, "--model", "mlp", "--machine", str(file), *out)


def test_too_little_memory_here() -> None:
    """Of the machine that simulates: a sentence, not a fault."""
    command = [sys.executable, "-m", "flexlegion", "simulate", "--model", "resnet101"]
    done = subprocess.run(
        [*command, "--machine", "h100x2048", "--batch-size", "16384"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: this machine has too little memory for that; take")
