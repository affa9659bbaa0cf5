"""Two ranks on this machine train as one does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from launch import run_legate, run_ranks

WORKER = Path(__file__).parent / "ranks_worker.py"
STRATEGIES = ["data", "model", "random:1", "random:2"]

pytestmark = pytest.mark.legion


def test_two_ranks(tmp_path: Path) -> None:
    """Rank count, placement, losses, predictions and weights, on both ranks."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    run_legate(WORKER, alone, "single", timeout=120)
    run_ranks(WORKER, together, *STRATEGIES, ranks=2, cpus=1)
    summaries = [json.loads((together / f"summary-{r}.json").read_text()) for r in (0, 1)]
    reference = json.loads((alone / "summary-0.json").read_text())
    for summary in summaries:
        # A wrong start gives two independent runs of one rank each.
        assert summary["ranks"] == 2
        assert summary["owners"] == [0, 1]
        assert summary["misplaced"] == []
        assert summary["ran_here"] > 0
        for key, losses in summary["metrics"].items():
            network = key.split()[0]
            np.testing.assert_allclose(
                losses, reference["metrics"][f"{network} single"], rtol=1e-5, err_msg=key
            )
    for network in ("images", "sequences"):
        expected = np.load(alone / f"{network}-single-0.npz")
        for strategy in STRATEGIES:
            for rank in (0, 1):
                file = f"{network}-{strategy.replace(':', '')}-{rank}.npz"
                found = np.load(together / file)
                assert set(found) == set(expected)
                for name in expected:
                    error = np.linalg.norm(found[name] - expected[name])
                    scale = np.linalg.norm(expected[name])
                    assert error <= 1e-4 * scale, f"{file} {name}: {error / scale:.2e}"
