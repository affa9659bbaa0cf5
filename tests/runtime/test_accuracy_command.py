"""``flexlegion accuracy``: trains under legate, which it starts by itself."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from launch import ROOT, is_quiet, run_checked

from flexlegion.cost.profile_db import ProfileDB

COMMAND = [sys.executable, "-m", "flexlegion", "accuracy", "--strategies", "3", "--rounds", "2"]
MLP = ["--model", "mlp", "--size", "input_shape=32", "--size", "hidden=64x32"]
# With recurrences, whose gates nothing but the backward pass reads.
RNNLM = ["--model", "rnnlm", "--size", "steps=3", "--size", "hidden=16", "--size", "vocabulary=50"]
# With a table that a product uses as well.
TRANSFORMER = ["--model", "transformer", "--size", "steps=8", "--size", "layers=1"]
TRANSFORMER += ["--size", "hidden=16", "--size", "heads=2", "--size", "vocabulary=50"]

pytestmark = pytest.mark.legion


def reported(network: list[str], folder: Path, *options: str) -> dict[str, Any]:
    """What the command says of a network, with a data base of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "LEGATE_CONFIG"}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), environment.get("PYTHONPATH")])
    )
    usual = ["--batch-size", "8", "--profile-db", str(folder / "p.db"), "--json"]
    command = [*COMMAND, *network, *usual, *options]
    done = run_checked(command, environment=environment, timeout=300)
    assert is_quiet(done.stderr), done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("network", [MLP, RNNLM, TRANSFORMER], ids=["mlp", "rnnlm", "transformer"])
def test_simulated_and_measured(network: list[str], tmp_path: Path) -> None:
    """All figures are there, and every task was measured, not estimated."""
    report = reported(network, tmp_path)
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


def test_transfers_between_ranks(tmp_path: Path) -> None:
    """Two ranks: one object, in which what crosses is priced by the measured link."""
    report = reported(MLP, tmp_path, "--ranks", "2", "--cpus", "1")
    assert report["machine"] == "cpu:0, cpu:1"
    single, model = report["strategies"]
    assert (single["strategy"], model["strategy"]) == ("single", "model")
    assert single["transfer_time_ns"] == 0 < model["transfer_time_ns"]
    for strategy in (single, model):
        assert set(strategy["priced_by"]) == {"measured"}
        assert 0 < strategy["measured_busy_time_ns"] < strategy["measured_iteration_time_ns"]
    with ProfileDB(tmp_path / "p.db") as db:
        links = db.links()
    assert len(links) == 2  # one direction alone, and both
    assert all(path.startswith("ranks of a node; legate ") for path in links)
