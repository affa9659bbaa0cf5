"""``flexlegion tune``: measures, searches, trains in rounds, writes; and training with that."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launch import ROOT, is_quiet, run_checked, run_legate

from flexlegion.cli.main import main
from flexlegion.strategy.strategy import Strategy

sys.path.append(str(Path(__file__).parents[1] / "long"))
from signals import Started

TUNE, TRAIN = ROOT / "scripts" / "tune_mapper.py", ROOT / "scripts" / "train.py"


def report_of(stdout: str) -> dict[str, Any]:
    """The JSON object; Legion may log beside it."""
    [line] = [line for line in stdout.splitlines() if line.startswith("{")]
    report: dict[str, Any] = json.loads(line)
    return report


def plain_shell(*arguments: object) -> str:
    """Standard output of a command in an environment that knows nothing of legate."""
    environment = {k: v for k, v in os.environ.items() if k != "LEGATE_CONFIG"}
    command = [sys.executable, "-m", "flexlegion", *map(str, arguments)]
    packages = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    environment["PYTHONPATH"] = packages
    done = run_checked(command, environment=environment, timeout=300)
    assert is_quiet(done.stderr), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data base for all tests: what the runtime takes is measured once."""
    return tmp_path_factory.mktemp("profile") / "p.db"


@pytest.mark.legion
def test_tunes_and_trains(tmp_path: Path, profile: Path) -> None:
    """As scripts under legate, with the options of the commands."""
    out = tmp_path / "s.json"
    options = ["--model", "lenet", "--budget", 1, "--rounds", 2, "--max-rounds", 3]
    options += ["--profile-db", profile, "--json"]
    first = run_legate(TUNE, "--out", out, *options, cpus=2)
    assert is_quiet(first.stderr), first.stderr
    report = report_of(first.stdout)
    assert report["tasks_measured"] > 0
    assert set(report["priced_by"]) == {"measured"}
    assert report["proposals"] > 0
    assert report["calibration"]["factor"] > 0
    assert report["calibration"]["runtime"] >= 0
    assert isinstance(report["rest"]["restless"], bool)
    assert report["rounds"] <= 3
    baseline, *others = report["finalists"]
    assert baseline["name"] == report["baseline"] == "data parallelism"
    simulated = [row["iteration_time_ns"] for row in report["finalists"]]
    assert len(set(simulated)) == len(simulated)
    for row in others:
        assert len(row["speedups"]) == row["rounds"] <= 3
        assert row["won"] == sum(speedup > 1 for speedup in row["speedups"])
        assert row["interval"] is None  # three rounds decide nothing
        assert row["verdict"] == "undecided"
    # So data parallelism stays, and it is said why.
    assert report["chosen"] == "data parallelism"
    assert report["reason"].startswith("data parallelism stays: ")
    if others:
        assert "after 3 rounds, the most allowed, no other is clearly" in report["reason"]
        assert "too few rounds for an interval" in report["reason"]
    strategy = Strategy.load(out)
    assert strategy.found["model"] == "lenet"
    assert strategy.devices() <= {"cpu:0", "cpu:1"}
    again = run_legate(TUNE, "--out", out, *options, cpus=2)
    assert report_of(again.stdout)["tasks_measured"] == 0
    run_legate(TRAIN, "--model", "lenet", "--strategy", out, "--epochs", 1, cpus=2)


@pytest.mark.legion
def test_from_a_plain_shell(tmp_path: Path, profile: Path) -> None:
    """The commands start legate by themselves."""
    out, metrics = tmp_path / "s.json", tmp_path / "m.json"
    network = ["--model", "mlp", "--data", "synthetic", "--size", "hidden=64x32"]
    network += ["--size", "input_shape=32", "--batch-size", 16]
    options = ["--budget", "1s", "--max-rounds", 8, "--profile-db", profile]
    text = plain_shell("tune", *network, *options, "--cpus", 2, "--out", out)
    *lines, last = text.splitlines()
    assert "mlp (batch 16, hidden 64x32, input_shape 32) on cpu:0, cpu:1" in text
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("data parallelism") for line in lines)
    told = " ".join(lines)
    assert "data parallelism stays: " in told or " is chosen over data parallelism: " in told
    assert last.startswith(f"wrote {out}: ")
    trained = ["--strategy", out, "--epochs", 1, "--cpus", 2, "--json", metrics]
    plain_shell("train", *network, *trained)
    assert json.loads(metrics.read_text())["processors"] == 2


@pytest.mark.legion
def test_a_model_of_ones_own(tmp_path: Path, profile: Path) -> None:
    """Searched, tuned and trained, with one's own data and strategy, from a plain shell."""
    net = f"{Path(__file__).with_name('own_net.py')}:model"
    model = ["--model", net, "--size", "hidden=24"]
    data, out, metrics = tmp_path / "data.npz", tmp_path / "s.json", tmp_path / "m.json"
    rng = np.random.default_rng(0)
    words, numbers = rng.integers(50, size=(80, 6)), rng.standard_normal((80, 3))
    np.savez(data, words=words, numbers=numbers, y=numbers.sum(1, keepdims=True))
    plain_shell("search", *model, "--machine", "p100x2", "--proposals", 100, "--out", out)
    options = ["--budget", "500ms", "--max-rounds", 8, "--profile-db", profile]
    options += ["--start", "both-ends", "--cpus", 2, "--out", out]
    told = plain_shell("tune", *model, "--data", data, *options)
    assert "'both-ends' as it is" in told
    assert "own_net.py:model (batch 16, hidden 24) on cpu:0, cpu:1" in told.replace("\n", " ")
    strategy = Strategy.load(out)
    assert strategy.found["model"] == net
    assert strategy.found["sizes"] == {"hidden": 24}
    trained = ["--strategy", out, "--epochs", 5, "--cpus", 2, "--json", metrics]
    text = plain_shell("train", *model[:2], "--data", data, *trained)  # the size is the file's
    assert "64 samples to train, 16 to test; 2 processors on 1 rank" in text
    report = json.loads(metrics.read_text())
    assert report["epochs"][-1]["loss"] < report["epochs"][0]["loss"]
    assert report["mean_absolute_error"] > 0


@pytest.mark.legion
def test_in_a_script(profile: Path) -> None:
    """`fl.tune` on data of one's own, then training."""
    worker = Path(__file__).with_name("tune_worker.py")
    done = run_legate(worker, profile, cpus=2)
    report = report_of(done.stdout)
    assert report["model"] is None
    assert report["optimizer"] == "adam"
    assert report["finalists"][0]["name"] == "data parallelism"
    assert "model (batch 16) on cpu:0, cpu:1" in done.stdout
    assert report["reason"] in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "nosuch"], "unknown model 'nosuch'"),
        (["--model", "alexnt"], "did you mean 'alexnet'?"),
        (["--rounds", "0"], "--rounds has to be at least 1"),
        (["--rounds", "9", "--max-rounds", "3"], "there are to be at least 9 rounds, and at most"),
        (["--confidence", "1"], "a confidence is between 0 and 1, but this is 1.0"),
        (["--gain", "-2"], "a gain is a share of at least 0, but this is -2.0"),
        (["--trial-budget", "soon"], "--trial-budget has to be a time such as 30s, 2m or 1h"),
        (["--budget", "soon"], "--budget has to be a time such as 30s, 2m or 1h"),
        (["--cpus", "0", "--gpus", "0"], "--cpus 0 and --gpus 0 leave no processor to run on"),
        (["--legate", '"'], "cannot be read: No closing quotation"),
    ],
)
def test_mistakes(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: list[str],
    message: str,
) -> None:
    """What is wrong is said before legate starts."""
    monkeypatch.delenv("LEGATE_CONFIG", raising=False)
    assert main(["tune", "--out", str(tmp_path / "s.json"), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


@pytest.mark.legion
def test_mistakes_under_legate(tmp_path: Path) -> None:
    result = run_legate(TUNE, "--out", tmp_path / "no" / "s.json", cpus=1, status=2)
    assert "cannot be written" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.legion
def test_interrupted_keeps_what_was_found(tmp_path: Path, profile: Path) -> None:
    """The fastest strategy until then, as simulated, is written."""
    out = tmp_path / "s.json"
    net = f"{Path(__file__).with_name('own_net.py')}:deep"
    options = ["--model", net, "--cpus", 2, "--gpus", 0, "--budget", "1h", "--rounds", 2]
    options += ["--profile-db", profile, "--out", out]
    started = Started(["tune", *map(str, options)], tmp_path, terminal=True)
    try:
        until = time.monotonic() + 120
        while "best " not in started.heard():  # which the bar of a search says
            assert time.monotonic() < until, started.heard()
            time.sleep(0.1)
        started.strike(signal.SIGTERM)
        assert started.process.wait(60) == 143
    finally:
        started.kill()
    assert started.said().splitlines()[-1] == (
        f"interrupted; {out} has the fastest strategy as simulated, not yet tried in training"
    )
    assert Strategy.load(out).found["iteration_time_ns"] > 0
