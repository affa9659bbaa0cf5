"""The benchmark of GPUs: its sizes, its table, and what it says without a GPU."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from common.sides import Side
from common.workloads import Workload
from gpu import NETWORKS, VARIANTS, Comparison, table_of, workload
from launch import ROOT, run_legate
from rich.console import Console


class Ran:
    """As much of a `Side` as tables need."""

    def __init__(self, name: str, *rates: float) -> None:
        self.name, self.rates, self.median = name, list(rates), sorted(rates)[len(rates) // 2]


def compared(**given: Any) -> Comparison:
    work = Workload("lenet", 64, 2)
    ours = cast(Side, Ran("flexlegion", 100.0, 200.0, 300.0))
    theirs = [
        cast(Side, Ran("PyTorch eager", 50.0, 50.0, 50.0)),
        cast(Side, Ran("PyTorch compiled", 100.0, 100.0, 50.0)),
    ]
    return Comparison(work, "tf32", **({"ours": ours, "theirs": theirs} | given))


def test_the_best_of_pytorch_counts() -> None:
    comparison = compared()
    assert comparison.ratios() == [1.0, 2.0, 6.0]
    assert comparison.to_json()["best_of_pytorch"] == "PyTorch compiled"
    assert comparison.iteration_ns == 1e9 * 64 / 200
    json.dumps(comparison.to_json())


def test_the_table_has_a_line_for_failures() -> None:
    profile = {"busy": 0.875, "simulated_iteration_time_ns": 3_500_000}
    console = Console(width=140)
    with console.capture() as capture:
        console.print(table_of([compared(profile=profile), compared(ours=None, theirs=[])]))
    text = capture.get()
    for part in ("2.00x", "88%", "3.50 ms", "320.00 ms", "compiled", "failed"):
        assert part in text
    assert json.dumps(compared(ours=None, theirs=[]).to_json())


def test_the_papers_batch_sizes() -> None:
    args = argparse.Namespace(size=[], batch_size=None, iterations=None)
    works = {name: workload(name, args) for name in NETWORKS}
    assert works["alexnet"].batch_size == 256
    others = {*NETWORKS} - {"alexnet", "transformer"}  # which the paper does not have
    assert {works[name].batch_size for name in others} == {64}
    assert works["nmt"].sizes["steps_per_op"] == 40
    assert "eager" in VARIANTS


def test_without_a_gpu() -> None:
    if list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("not applicable: there is a GPU")
    command = [sys.executable, str(ROOT / "scripts" / "bench" / "gpu.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: there is no NVIDIA GPU on this machine\n"


@pytest.mark.legion
def test_profile_and_simulation(tmp_path: Path) -> None:
    """On a CPU processor, where there is no GPU."""
    work = Workload("lenet", 16, 2, samples=64).to_json()
    script = ROOT / "scripts" / "bench" / "workers" / "gpu_worker.py"
    options = ["--workload", work, "--strategy", "data", "--profile-db", tmp_path / "p.db"]
    done = run_legate(script, *options)
    [line] = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = json.loads(line)
    assert 0 < found["busy"] <= 1
    assert found["simulated_iteration_time_ns"] > 0
    assert set(found["priced_by"]) == {"measured"}
