"""What was predicted of memory is what Legion gives out; tests/sim/test_memory.py has more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from common.workloads import Workload
from launch import BFLOAT16, ROOT, run_legate, run_ranks
from workers.memory_worker import RESULTS
from zoo_cases import CASES

WORKER = ROOT / "scripts" / "bench" / "workers" / "memory_worker.py"
STRATEGIES = ("single", "data", "model", "expert", "random:1", "random:2", "data+zero2", "fsdp")
NETWORKS = ("lenet", "resnet101", "rnntc", "nmt_pieces", "transformer")
CPUS = 2
TOLERANCE = 0.05

pytestmark = pytest.mark.legion


def arguments(name: str, out: Path) -> list[object]:
    """The worker's."""
    case = CASES[name]
    work = Workload(case.name, case.batch_size, 2, case.sizes, samples=2 * case.batch_size)
    return ["--workload", work.to_json(), "--strategies", ",".join(STRATEGIES), "--out", out]


def check(result: dict[str, Any]) -> None:
    """One strategy on one rank."""
    assert result["finite"]
    assert result["training"] <= result["with_prediction"]
    assert result["simulated"] == pytest.approx(result["training"], rel=TOLERANCE)
    if result["planned"] is not None:
        assert result["planned"] == pytest.approx(result["with_prediction"], rel=TOLERANCE)


@pytest.mark.parametrize("name", NETWORKS)
def test_processors_that_share_a_memory(name: str, tmp_path: Path) -> None:
    """In training as simulated."""
    out = tmp_path / "result.json"
    run_legate(WORKER, *arguments(name, out), cpus=CPUS)
    results = json.loads(Path(f"{out}.0").read_text())
    assert [result["strategy"] for result in results] == list(STRATEGIES)
    for result in results:
        check(result)
        assert result["left"] <= RESULTS


@pytest.mark.skipif(not BFLOAT16, reason="no AVX512-BF16")
@pytest.mark.parametrize("name", ["resnet101", "transformer"])
def test_stored_as_bf16(name: str, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    run_legate(WORKER, *arguments(name, out), "--storage", "bf16", cpus=CPUS)
    for result in json.loads(Path(f"{out}.0").read_text()):
        check(result)


def test_memories_of_their_own(tmp_path: Path) -> None:
    """Of each rank, in training as simulated, and after a prediction as planned."""
    out = tmp_path / "result.json"
    run_ranks(WORKER, *arguments("lenet", out))
    for rank in (0, 1):
        results = json.loads(Path(f"{out}.{rank}").read_text())
        assert len(results) == len(STRATEGIES)
        for result in results:
            assert result["planned"] is not None
            check(result)
