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
from flexlegion.profiling.local import cpu_model

COMMAND = [sys.executable, "-m", "flexlegion", "accuracy", "--strategies", "3", "--rounds", "2"]
COMMAND += ["--trial-budget", "0.1s"]
MLP = ["--model", "mlp", "--size", "input_shape=32", "--size", "hidden=64x32"]
# With recurrences, whose gates nothing but the backward pass reads.
RNNLM = ["--model", "rnnlm", "--size", "steps=3", "--size", "hidden=16", "--size", "vocabulary=50"]
# With a table that a product uses as well.
TRANSFORMER = ["--model", "transformer", "--size", "steps=8", "--size", "layers=1"]
TRANSFORMER += ["--size", "hidden=16", "--size", "heads=2", "--size", "vocabulary=50"]

pytestmark = pytest.mark.legion


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data base for all networks on one rank: what the runtime takes is measured once."""
    return tmp_path_factory.mktemp("profile") / "p.db"


def reported(network: list[str], profile: Path, *options: str) -> dict[str, Any]:
    """What the command says of a network, with this data base."""
    environment = {k: v for k, v in os.environ.items() if k != "LEGATE_CONFIG"}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), environment.get("PYTHONPATH")])
    )
    usual = ["--batch-size", "8", "--profile-db", str(profile), "--json"]
    command = [*COMMAND, *network, *usual, *options]
    done = run_checked(command, environment=environment, timeout=300)
    assert is_quiet(done.stderr), done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("network", [MLP, RNNLM, TRANSFORMER], ids=["mlp", "rnnlm", "transformer"])
def test_simulated_and_measured(network: list[str], profile: Path) -> None:
    """All figures are there, and every task was measured, not estimated."""
    report = reported(network, profile)
    assert report["model"] == network[1]
    assert report["machine"] == "cpu:0, cpu:1"
    assert report["tasks_measured"] > 0
    assert report["reference"]["strategy"] == "data"
    assert report["calibration"]["factor"] > 0
    assert report["calibration"]["runtime"] >= 0
    assert isinstance(report["rest"]["restless"], bool)
    assert report["rest"]["drift"] > 0
    assert report["passes"] >= 1
    assert [s["strategy"] for s in report["strategies"]] == ["single", "model"]
    for strategy in (report["reference"], *report["strategies"]):
        assert set(strategy["priced_by"]) == {"measured"}
        simulated = strategy["iteration_time_ns"]
        measured = strategy["measured_iteration_time_ns"]
        assert simulated > 0
        assert measured > 0
        assert strategy["error"] == pytest.approx(simulated / measured - 1)
        assert sum(strategy["difference_ns"].values()) == measured - simulated
        for parts, whole in (("simulated", simulated), ("measured", measured)):
            its = strategy[f"{parts}_parts_ns"]
            assert sum(its.values()) == whole
            assert its["tasks"] > 0
            assert its["launches"] > 0
        assert strategy["measured_interval_ns"] is None  # of two rounds
        assert strategy["transfer_time_ns"] == 0  # the processors share a memory
        assert strategy["busiest_device"] in ("cpu:0", "cpu:1")
    errors = [abs(strategy["error"]) for strategy in report["strategies"]]
    assert report["mean_error"] == pytest.approx(sum(errors) / 2, rel=1e-4)  # of whole ns
    assert report["worst_error"] == pytest.approx(max(errors), rel=1e-4)
    assert report["kendall_tau"] is None  # without intervals, no pair is known to differ
    # What the runtime takes is kept for all networks.
    with ProfileDB(profile) as db:
        model = cpu_model()
        runtime = db.runtime(model, db.newest_software(model))
    assert runtime is not None
    assert runtime.dispatch_ns > 0
    assert runtime.iteration_ns + runtime.launch_ns + runtime.task_ns > 0
    assert runtime.cores >= 1


def test_transfers_between_ranks(tmp_path: Path) -> None:
    """Two ranks: one object, in which what crosses is priced by the measured link."""
    report = reported(MLP, tmp_path / "p.db", "--ranks", "2", "--cpus", "1")
    assert report["machine"] == "cpu:0, cpu:1"
    single, model = report["strategies"]
    assert (single["strategy"], model["strategy"]) == ("single", "model")
    assert single["transfer_time_ns"] == 0 < model["transfer_time_ns"]
    for strategy in (single, model):
        assert set(strategy["priced_by"]) == {"measured"}
        assert 0 < strategy["measured_parts_ns"]["tasks"] < strategy["measured_iteration_time_ns"]
    with ProfileDB(tmp_path / "p.db") as db:
        links = db.links()
    assert len(links) == 2  # one direction alone, and both
    assert all(path.startswith("ranks of a node; legate ") for path in links)
