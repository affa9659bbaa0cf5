"""The mapper-tuning script: profile, search, measure, write; and training with what it wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from launch import ROOT, run_legate

sys.path.insert(0, str(ROOT / "scripts"))

from tune_mapper import choose

from flexlegion.soap import ParallelConfig
from flexlegion.strategy import Strategy
from flexlegion.tools.trials import Trial

TUNE, TRAIN = ROOT / "scripts" / "tune_mapper.py", ROOT / "scripts" / "train.py"


def finalist(name: str, *seconds: float) -> Trial:
    strategy = Strategy({"a": ParallelConfig((1,), ("cpu:0",))})
    return Trial(name, strategy, 1, list(seconds))


def report_of(stdout: str) -> dict[str, Any]:
    """The JSON object; Legion may log beside it."""
    [line] = [line for line in stdout.splitlines() if line.startswith("{")]
    report: dict[str, Any] = json.loads(line)
    return report


def test_data_parallelism_is_kept_unless_clearly_beaten() -> None:
    data = finalist("data", 1.0, 1.0, 1.0)
    faster = finalist("faster", 0.9, 0.9, 0.9)
    assert choose([data, faster]) is faster
    assert choose([data, finalist("hardly", 0.995, 0.995, 0.995)]) is data
    assert choose([data, finalist("slower", 1.1, 1.2, 1.1)]) is data
    # Faster at the median by less than it is slower at other times.
    assert choose([data, finalist("once", 1.2, 0.9, 1.1)]) is data


@pytest.mark.legion
def test_tunes_and_trains(tmp_path: Path) -> None:
    out, db = tmp_path / "s.json", tmp_path / "p.db"
    options = ["--model", "lenet", "--budget", 1, "--rounds", 2, "--profile-db", db, "--json"]
    first = run_legate(TUNE, "--out", out, *options, cpus=2)
    report = report_of(first.stdout)
    assert report["tasks_measured"] > 0
    assert set(report["priced_by"]) == {"measured"}
    assert report["proposals"] > 0
    assert report["calibration"]["factor"] > 0
    assert report["calibration"]["launch_ns"] >= 0
    names = [row["name"] for row in report["finalists"]]
    assert names[0] == "data parallelism"
    simulated = [row["iteration_time_ns"] for row in report["finalists"]]
    assert len(set(simulated)) == len(simulated)
    assert report["chosen"] in names
    chosen = next(row for row in report["finalists"] if row["name"] == report["chosen"])
    data = report["finalists"][0]
    assert chosen["measured_iteration_time_ns"] <= data["measured_iteration_time_ns"]
    strategy = Strategy.load(out)
    assert strategy.found["model"] == "lenet"
    assert strategy.devices() <= {"cpu:0", "cpu:1"}
    again = run_legate(TUNE, "--out", out, *options, cpus=2)
    assert report_of(again.stdout)["tasks_measured"] == 0
    run_legate(TRAIN, "--model", "lenet", "--strategy", out, "--epochs", 1, cpus=2)


@pytest.mark.legion
def test_mistakes(tmp_path: Path) -> None:
    for options, message in (
        (["--model", "nosuch", "--out", tmp_path / "s.json"], "unknown model 'nosuch'"),
        (["--out", tmp_path / "no" / "s.json"], "cannot be written"),
        (["--out", tmp_path / "s.json", "--rounds", 0], "--rounds has to be at least 1"),
    ):
        result = run_legate(TUNE, *options, cpus=1, status=2)
        assert message in result.stderr
        assert "Traceback" not in result.stderr
