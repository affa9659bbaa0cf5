"""Two ranks on this machine train as one does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from launch import run_legate, run_ranks

WORKER = Path(__file__).parent / "ranks_worker.py"
NETWORKS = ("images", "sequences")

pytestmark = pytest.mark.legion


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one device on one rank computes."""
    folder = tmp_path_factory.mktemp("alone")
    run_legate(WORKER, folder, "single", timeout=120)
    return folder


# Two ranks in every way; with three, a rank reads and writes gradients in instances apart.
@pytest.mark.parametrize(
    ("ranks", "strategies"), [(2, ["data", "model", "random:1", "random:2"]), (3, ["data"])]
)
def test_ranks(ranks: int, strategies: list[str], alone: Path, tmp_path: Path) -> None:
    """Rank count, placement, losses, predictions and weights, on every rank."""
    run_ranks(WORKER, tmp_path, *strategies, ranks=ranks, cpus=1)
    reference = json.loads((alone / "summary-0.json").read_text())
    for rank in range(ranks):
        summary = json.loads((tmp_path / f"summary-{rank}.json").read_text())
        # A wrong start gives independent runs of one rank each.
        assert summary["ranks"] == ranks
        assert summary["owners"] == list(range(ranks))
        assert summary["misplaced"] == []
        assert summary["ran_here"] > 0
        assert len(summary["metrics"]) == len(NETWORKS) * len(strategies)
        for key, losses in summary["metrics"].items():
            expected = reference["metrics"][f"{key.split()[0]} single"]
            np.testing.assert_allclose(losses, expected, rtol=1e-5, err_msg=key)
        for network in NETWORKS:
            expected_state = np.load(alone / f"{network}-single-0.npz")
            for strategy in strategies:
                file = f"{network}-{strategy.replace(':', '')}-{rank}.npz"
                compare(dict(np.load(tmp_path / file)), dict(expected_state), file)


def compare(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], file: str) -> None:
    """Weights and predictions agree within fp32 rounding."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        error = np.linalg.norm(found[name] - value) / np.linalg.norm(value)
        assert error <= 1e-4, f"{file} {name}: {error:.2e}"
