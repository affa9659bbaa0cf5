"""What saves memory leaves the same bits: recomputation, sharded weights, memory used again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launch import run_legate, run_ranks

WORKER = Path(__file__).parent / "recomputation_worker.py"

pytestmark = pytest.mark.legion


def trained(tmp_path: Path, *options: str, **machine: Any) -> dict[str, Any]:
    """What the worker found, of each network and strategy."""
    out = tmp_path / "result"
    run_legate(WORKER, out, *options, timeout=600, **machine)
    found: dict[str, Any] = json.loads(Path(f"{out}.0").read_text())
    return found


def check(found: dict[str, Any], least: int) -> None:
    """Nothing differs; and so many networks had something run again, and held less."""
    assert {name: its["differ"] for name, its in found.items() if its["differ"]} == {}
    assert sum(its["again"] > 0 for its in found.values()) >= least
    assert sum(its["saved"] > 0 for its in found.values()) >= least


def test_same_bits(tmp_path: Path) -> None:
    """Of every network, with whole operators on devices and with samples split."""
    check(trained(tmp_path, "--strategies", "model", "data", cpus=2), least=40)


@pytest.mark.parametrize("ranks", [1, 2])
def test_same_bits_of_shards(ranks: int, tmp_path: Path) -> None:
    """In one memory, and in two."""
    options = ("--strategies", "data", "--additions", "zero2", "zero3+again")
    if ranks == 1:
        found = trained(tmp_path, *options, "zero3", cpus=2)
    else:
        out = tmp_path / "result"
        run_ranks(WORKER, out, *options, "--as-trained", ranks=ranks, cpus=1, timeout=600)
        found = json.loads(Path(f"{out}.0").read_text())
    assert {name: its["differ"] for name, its in found.items() if its["differ"]} == {}
    assert sum(its["again"] > 0 for its in found.values()) >= 30


def test_same_bits_in_micro_batches(tmp_path: Path) -> None:
    """In a pipeline whose layers go round the devices as well."""
    options = ("--strategies", "interleaved", "data", "--rounds", "2")
    options += ("--additions", "again", "selective")
    check(trained(tmp_path, *options, cpus=2), least=20)
