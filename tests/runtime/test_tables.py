"""Tables whose columns live on several devices train as whole ones do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launch import ROOT, run_legate, run_ranks
from pytorch_cases import CASES
from pytorch_reference import Reference, load

PYTORCH_WORKER = Path(__file__).with_name("pytorch_worker.py")
WORKER = ROOT / "scripts" / "bench" / "workers" / "tables_worker.py"
SIZES = {"rows": 1000, "columns": 16, "tables": 4, "hidden": 32}

pytestmark = pytest.mark.legion


@pytest.mark.parametrize("seed", range(3))
def test_random_strategies_agree_with_pytorch(seed: int, tmp_path: Path) -> None:
    """Values, gradients, weights, momentum and Adam's states, on three processors."""
    file = tmp_path / "saved.npz"
    run_legate(PYTORCH_WORKER, file, "fp32", f"random:{seed}", "embedding", cpus=3)
    saved = load(file)
    assert len(saved) >= 7
    for name, arrays in saved.items():
        assert "error" not in arrays, str(arrays["error"])
        expected = Reference(CASES[name], arrays).run()
        assert any("/gradient/l0.table" in key for key in expected)
        for key, reference in expected.items():
            error = np.linalg.norm(arrays[key] - reference)
            assert error <= 1e-5 * np.linalg.norm(reference), f"{name} {key}"


def trained(run: Any, out: Path, strategies: str, ranks: int = 1, **options: Any) -> Any:
    """What the worker found, by rank."""
    arguments = ["--sizes", json.dumps(SIZES), "--optimizer", "adam", "--out", out]
    run(WORKER, *arguments, "--strategies", strategies, **options)
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(ranks)]


def test_two_ranks_train_as_one_process(tmp_path: Path) -> None:
    """Each holds its columns: all of them together one set of tables, and Adam's states."""
    [[alone]] = trained(run_legate, tmp_path / "alone", "single")
    both = trained(run_ranks, tmp_path / "both", "data,model,random:1", ranks=2)
    tables = 4 * SIZES["tables"] * SIZES["rows"] * SIZES["columns"] * (1 + 2)
    for here, there in zip(*both, strict=True):
        np.testing.assert_allclose(here["losses"], alone["losses"], rtol=1e-5)
        assert here["losses"] == there["losses"]
    memory = both[0][0]["memory_bytes"] | both[1][0]["memory_bytes"]
    assert len(memory) == 2
    assert tables < sum(memory.values()) < 1.5 * tables
