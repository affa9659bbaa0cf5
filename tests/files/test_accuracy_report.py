"""scripts/bench/accuracy.py: one report of many networks, which a later start goes on with."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import accuracy
import pytest
from accuracy import CASES, Case, described, differing, main, options, read
from launch import ROOT

from flexlegion.cli.accuracy import add

SMALL = ("--model", "mlp", "--size", "input_shape=32", "--size", "hidden=16", "--batch-size", "8")
QUICK = ["--strategies", "3", "--rounds", "1", "--trial-budget", "0.1s"]
KEPT = sorted((ROOT / "docs" / "measurements").glob("accuracy-*.json"))


def all_of(folder: Path, *given: str) -> int:
    """The script, with a data base of its own; its status."""
    usual = ["--out", str(folder / "report.json"), "--profile-db", str(folder / "p.db")]
    return main([*usual, *QUICK, *given])


def report_of(folder: Path) -> dict[str, Any]:
    """What was written."""
    return read(folder / "report.json")


def networks_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Its rows by the networks' names."""
    return {row["network"]: row for row in report["networks"]}


@pytest.mark.legion
def test_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of two networks one does not exist; when it does, the other is not trained again."""
    monkeypatch.delenv("LEGATE_CONFIG", raising=False)
    cases = (Case("small", SMALL), Case("other", ("--model", "nosuch")))
    monkeypatch.setattr(accuracy, "CASES", cases)
    assert all_of(tmp_path) == 2
    first = report_of(tmp_path)
    trained = [row["strategy"] for row in first["strategies"]]
    assert trained == ["data", "single", "model"]
    assert {row["network"] for row in first["strategies"]} == {"small"}
    assert networks_of(first)["other"]["error"] == "it ended with status 2"
    out, err = capfd.readouterr()
    assert "unknown model 'nosuch'" in err
    assert "small (2 networks to go)" in err
    assert out.count("\nsmall ") == 1
    monkeypatch.setattr(accuracy, "CASES", (cases[0], Case("other", SMALL)))
    earlier = tmp_path / "earlier.json"
    earlier.write_bytes((tmp_path / "report.json").read_bytes())
    assert all_of(tmp_path, "--compare", str(earlier)) == 0
    second = report_of(tmp_path)
    assert networks_of(second)["small"] == networks_of(first)["small"]
    assert networks_of(second)["other"]["pairs"] == 1
    assert second["strategies"][:3] == first["strategies"]
    assert [row["network"] for row in second["strategies"][3:]] == ["other"] * 3
    out, err = capfd.readouterr()
    assert "small (" not in err
    assert out.count("\nsmall ") == 2  # in both reports
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.legion
def test_options_reach_every_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What was asked for is what the networks' own processes say; else there is no result."""
    monkeypatch.delenv("LEGATE_CONFIG", raising=False)
    monkeypatch.setattr(accuracy, "CASES", (Case("small", SMALL),))
    asked = {"storage": "fp16", "precision": "fp32", "optimizer": "adamw", "clip_norm": 0.5}
    asked |= {"micro_batches": 2, "loss": "mean_squared_error", "ema": 0.9}
    words = [w for name, v in asked.items() for w in (f"--{name.replace('_', '-')}", str(v))]
    assert all_of(tmp_path, *words, "--seed", "3") == 0
    report = report_of(tmp_path)
    wanted = asked | {"strategies": 3, "rounds": 1, "trial_budget": "0.1s", "seed": 3}
    assert report["options"] == wanted
    assert networks_of(report)["small"]["options"] == wanted
    heading = "adamw, clipped to norm 0.5, averages with ema 0.9, stored as fp16, micro-batches 2"
    assert heading in " ".join(capfd.readouterr().out.split())


def test_every_option_is_handed_on_or_of_one_network() -> None:
    commands = argparse.ArgumentParser().add_subparsers()
    add(commands)
    known, given = (
        {action.dest for action in parser._actions}
        for parser in (commands.choices["accuracy"], options())
    )
    assert given - known == {"out", "compare"}
    one = {"size", "no_verify", "batch_size", "report", "json"}
    assert known - given == one | {"ranks", "hosts", "cpus", "threads", "gpus", "legate"}


def test_a_network_that_ran_otherwise_is_no_result() -> None:
    args = options().parse_args(["--out", "r.json", "--storage", "bf16"])
    ran = vars(args) | {"precision": "fp32"}  # which nobody asked for
    assert differing({"loss": "huber", "options": ran}, args) is None
    message = "it ran with storage fp32, but bf16 was asked for"
    assert differing({"loss": "huber", "options": ran | {"storage": "fp32"}}, args) == message


def test_the_networks_of_the_paper_are_there() -> None:
    names = [case.name for case in CASES]
    paper = {"alexnet", "inception_v3", "resnet101", "rnntc", "rnnlm", "nmt"}
    assert paper | {"lenet", "transformer"} <= set(names)
    assert len(set(names)) == len(names)
    assert sum("ranks" in name for name in names) == 2


def test_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    about = {
        "schema_version": 2,
        "machine": {"processor": "another", "cores": 1, "software": "legate 1"},
        "options": {},
        "begun": "2026-01-01",
        "networks": [],
        "strategies": [],
    }
    here = about | {"machine": accuracy.machine()}
    for given, content, message in (
        ([], about, "this report has another machine"),
        ([], here, "this report has another options"),
        ([], {"schema_version": 2}, "the key 'machine' is missing"),
        ([], about | {"schema_version": 1}, "'schema_version' has to be a whole number from 2"),
        ([], about | {"networks": 1}, "'networks' has to be a list"),
        ([], about | {"networks": [1]}, "has to be an object"),
        ([], about | {"strategies": [{"network": "a"}]}, "the key 'strategy' is missing"),
        (["--compare", str(tmp_path / "x")], None, "no such"),
        (["--out", str(tmp_path / "no" / "r.json")], None, "cannot be written"),
        (["--rounds", "0"], None, "--rounds has to be at least 1"),
    ):
        report.unlink(missing_ok=True)
        if content is not None:
            report.write_text(json.dumps(content))
        assert main(["--out", str(report), *given]) == 2, given
        assert message in capsys.readouterr().err
    for given in ([], ["--out", "r.json", "--cpus", "2"], ["--out", "r.json", "--size", "a=1"]):
        with pytest.raises(SystemExit):
            main(given)


def test_table() -> None:
    """Networks that failed have a row, too."""
    row = {
        "network": "lenet",
        "seconds": 91.4,
        "options": {
            "optimizer": "sgd",
            "clip_norm": None,
            "precision": "fp32",
            "storage": "fp32",
            "micro_batches": 1,
        },
        "mean_error": 0.034,
        "worst_error": 0.09,
        "kendall_tau": None,
        "pairs_compared": 0,
        "pairs": 45,
        "calibrated": {"mean_error": 0.02, "worst_error": 0.05},
        "rest": {"restless": True},
    }
    failed = {"network": "nmt", "seconds": 3.2, "error": "it ended with status 1"}
    report = {
        "machine": {"processor": "EPYC", "cores": 2, "software": "legate 26.1.0"},
        "options": {"strategies": 11, "seed": 3},
        "begun": "2026-11-24 08:00",
        "networks": [row, failed],
    }
    text = described([report])
    assert "EPYC, 2 cores, legate 26.1.0; 2026-11-24 08:00; 11 strategies, seed 3" in text
    assert "0/45" in text
    assert "too restless" in text
    assert "it ended with status 1" in text


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_tables_of_the_notes_are_of_the_reports(path: Path) -> None:
    notes = (ROOT / "docs" / "notes" / "simulated-beside-measured-times.md").read_text()
    _, linked, section = notes.partition(f"(../measurements/{path.name})")
    assert linked
    report = read(path)
    assert f"--seed {report['options']['seed']}" in notes
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    for line, row in zip(lines, report["networks"], strict=False):
        mean, worst = (
            f"{row[key]:.1%}".replace("%", " %") for key in ("mean_error", "worst_error")
        )
        tau = f"{row['kendall_tau']:.2f}, {row['pairs_compared']} pairs"
        assert f" | {mean} | {worst} | {tau} | " in line
    assert all(name in described([report]) for name in networks_of(report))
    of = [row["network"] for row in report["strategies"]]
    assert list(dict.fromkeys(of)) == list(networks_of(report))
