"""``flexlegion accuracy``: trains under legate, which it starts by itself."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from launch import ROOT, run_checked

COMMAND = [sys.executable, "-m", "flexlegion", "accuracy", "--strategies", "3", "--rounds", "2"]
MLP = ["--model", "mlp", "--size", "input_shape=32", "--size", "hidden=64x32"]
# With recurrences, whose gates nothing but the backward pass reads.
RNNLM = ["--model", "rnnlm", "--size", "steps=3", "--size", "hidden=16", "--size", "vocabulary=50"]
# With a table that a product uses as well.
TRANSFORMER = ["--model", "transformer", "--size", "steps=8", "--size", "layers=1"]
TRANSFORMER += ["--size", "hidden=16", "--size", "heads=2", "--size", "vocabulary=50"]

pytestmark = pytest.mark.legion


@pytest.mark.parametrize("network", [MLP, RNNLM, TRANSFORMER], ids=["mlp", "rnnlm", "transformer"])
def test_simulated_and_measured(network: list[str], tmp_path: Path) -> None:
    """All figures are there, and every task was measured, not estimated."""
    environment = {k: v for k, v in os.environ.items() if k != "LEGATE_CONFIG"}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), environment.get("PYTHONPATH")])
    )
    options = ["--batch-size", "8", "--profile-db", str(tmp_path / "p.db"), "--json"]
    done = run_checked([*COMMAND, *network, *options], environment=environment, timeout=300)
    report = json.loads(done.stdout)
    assert report["model"] == network[1]
    assert report["machine"] == "cpu:0, cpu:1"
    assert report["tasks_measured"] > 0
    assert report["calibration"]["strategy"] == "data"
    assert report["calibration"]["factor"] > 0
    assert report["calibration"]["launch_ns"] >= 0
    before = report["calibration"]["measured_iteration_time_ns"]
    after = report["calibration"]["final_iteration_time_ns"]
    assert before > 0
    assert after not in (0, before)  # measured, and not the same one again
    assert report["calibration"]["drift"] == pytest.approx(after / before)
    assert report["uncalibrated"]["worst_error"] >= report["uncalibrated"]["mean_error"] > 0
    assert [s["strategy"] for s in report["strategies"]] == ["single", "model"]
    for strategy in report["strategies"]:
        assert set(strategy["priced_by"]) == {"measured"}
        simulated = strategy["iteration_time_ns"]
        measured = strategy["measured_iteration_time_ns"]
        assert simulated > 0
        assert measured > 0
        assert strategy["error"] == pytest.approx(simulated / measured - 1)
        difference = strategy["operator_difference_ns"] + strategy["waiting_difference_ns"]
        assert difference == measured - simulated
        assert strategy["transfer_time_ns"] == 0  # the processors share a memory
        assert strategy["busiest_device"] in ("cpu:0", "cpu:1")
    errors = [abs(strategy["error"]) for strategy in report["strategies"]]
    assert report["mean_error"] == pytest.approx(sum(errors) / 2)
    assert report["worst_error"] == max(errors)
    assert report["kendall_tau"] in (None, -1.0, 0.0, 1.0)
