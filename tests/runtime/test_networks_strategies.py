"""The zoo's networks compute under random strategies what one device computes.

FLEXLEGION_STRATEGIES is the number of strategies for each network, 10 unless it is set.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from launch import run_legate
from zoo_cases import CASES

WORKER = Path(__file__).parent / "strategies_worker.py"
COUNT = int(os.environ.get("FLEXLEGION_STRATEGIES", "10"))
CPUS = 2

pytestmark = pytest.mark.legion


@pytest.mark.parametrize("name", CASES)
def test_random_strategies(name: str, tmp_path: Path) -> None:
    """Weights, all gradients, outputs, losses and placements of three steps, by relative norm."""
    if missing := CASES[name].missing_kernels():
        pytest.skip(missing)
    out = tmp_path / "result.json"
    arguments = ["--first", 100, "--count", COUNT, "--out", out, "--zoo", name]
    run_legate(WORKER, *arguments, cpus=CPUS, timeout=120 + 30 * COUNT)
    result = json.loads(Path(f"{out}.0").read_text())
    assert result["failures"] == []
    assert (result["processors"], result["strategies"]) == (CPUS, COUNT)
    assert result["copied_bytes"] == 0
