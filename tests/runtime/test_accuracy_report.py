"""``flexlegion accuracy --all``: one report of many networks, which a later start goes on with."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

from flexlegion.cli import accuracy, accuracy_report
from flexlegion.cli.accuracy_report import CASES, Case, described
from flexlegion.cli.main import main

SMALL = ("--model", "mlp", "--size", "input_shape=32", "--size", "hidden=16", "--batch-size", "8")
QUICK = ["--strategies", "3", "--rounds", "1", "--trial-budget", "0.1s"]


def all_of(folder: Path, *options: str) -> int:
    """The command, with a data base of its own; its status."""
    usual = ["--all", "--out", str(folder / "report.json"), "--profile-db", str(folder / "p.db")]
    try:
        return main(["accuracy", *usual, *QUICK, *options])
    except SystemExit as end:
        return int(end.code or 0)


def report_of(folder: Path) -> dict[str, Any]:
    """What was written."""
    return dict(json.loads((folder / "report.json").read_text()))


@pytest.mark.legion
def test_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of two networks one does not exist; when it does, the other is not trained again."""
    monkeypatch.delenv("LEGATE_CONFIG", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["tests/tune", "."]))
    cases = (Case("small", SMALL), Case("other", ("--model", "nosuch")))
    monkeypatch.setattr(accuracy_report, "CASES", cases)
    assert all_of(tmp_path) == 2
    first = report_of(tmp_path)["cases"]
    assert first["small"]["facts"]["strategies"]
    assert first["other"]["error"] == "it ended with status 2"
    out, err = capfd.readouterr()
    assert "unknown model 'nosuch'" in err
    assert "small (2 networks to go)" in err
    assert out.count("\nsmall ") == 1
    monkeypatch.setattr(accuracy_report, "CASES", (cases[0], Case("other", SMALL)))
    earlier = tmp_path / "earlier.json"
    earlier.write_bytes((tmp_path / "report.json").read_bytes())
    assert all_of(tmp_path, "--compare", str(earlier)) == 0
    second = report_of(tmp_path)["cases"]
    assert second["small"] == first["small"]
    assert second["other"]["facts"]["strategies"]
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
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["tests/tune", "."]))
    monkeypatch.setattr(accuracy_report, "CASES", (Case("small", SMALL),))
    options = {"storage": "fp16", "precision": "fp32", "optimizer": "adamw", "clip_norm": 0.5}
    options["micro_batches"] = 2
    words = [w for name, v in options.items() for w in (f"--{name.replace('_', '-')}", str(v))]
    assert all_of(tmp_path, *words, "--seed", "3") == 0
    report = report_of(tmp_path)
    wanted = options | {"strategies": 3, "rounds": 1, "trial_budget": "0.1s", "seed": 3}
    assert report["options"] == wanted
    ran = report["cases"]["small"]["facts"]
    assert {name: ran["options"][name] for name in wanted} == wanted
    assert {name: ran[name] for name in ("storage", "precision", "optimizer")} == {
        name: options[name] for name in ("storage", "precision", "optimizer")
    }
    heading = "optimizer adamw, clipped to norm 0.5, stored as fp16"
    assert heading in " ".join(capfd.readouterr().out.split())


def test_every_option_is_handed_on_or_refused_or_of_all() -> None:
    commands = argparse.ArgumentParser().add_subparsers()
    accuracy.add(commands)
    parser = commands.choices["accuracy"]
    known = [action.dest for action in parser._actions if action.dest != "help"]
    rest = (*accuracy_report.OF_ONE_NETWORK, *accuracy_report.OF_ALL)
    assert sorted(known) == sorted((*accuracy_report.HANDED_ON, *rest))


def test_a_network_that_ran_otherwise_is_no_result() -> None:
    args = argparse.Namespace(**(dict.fromkeys(accuracy_report.HANDED_ON) | {"storage": "bf16"}))
    ran = dict.fromkeys(accuracy_report.HANDED_ON)
    assert accuracy_report._difference({"options": ran | {"storage": "bf16"}}, args) is None
    message = "it ran with storage fp32, but bf16 was asked for"
    assert accuracy_report._difference({"options": ran | {"storage": "fp32"}}, args) == message


def test_the_networks_of_the_paper_are_there() -> None:
    names = [case.name for case in CASES]
    paper = {"alexnet", "inception_v3", "resnet101", "rnntc", "rnnlm", "nmt"}
    assert paper | {"lenet", "transformer"} <= set(names)
    assert len(set(names)) == len(names)
    assert sum("ranks" in name for name in names) == 2


def test_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    options = ["--strategies", "11", "--rounds", "6", "--trial-budget", "60s", "--seed", "0"]
    about = {
        "schema_version": 1,
        "machine": {"processor": "another", "cores": 1, "software": "legate 1"},
        "options": {},
        "begun": "2026-01-01",
        "cases": {},
    }
    for arguments, content, message in (
        (["--all"], None, "give --out report.json"),
        (["--all", "--out", str(report), "--cpus", "2"], None, "--cpus is of one network"),
        (["--all", "--out", str(report), "--size", "a=1"], None, "--size is of one network"),
        (["--all", "--out", str(tmp_path / "no" / "r.json")], None, "cannot be written"),
        (["--all", "--out", str(report)], about, "this report has another machine"),
        (["--all", "--out", str(report)], {"schema_version": 1}, "the key 'machine' is missing"),
        (["--all", "--out", str(report)], about | {"cases": 1}, "'cases' has to be an object"),
        (["--all", "--out", str(report)], about | {"cases": {"a": 1}}, "has to be an object"),
        (["--all", "--out", str(report), "--compare", str(tmp_path / "x")], None, "no such"),
        (["--model", "lenet", "--out", str(report)], None, "--out and --compare are of --all"),
        ([], None, "name a network by --model"),
    ):
        report.unlink(missing_ok=True)
        if content is not None:
            report.write_text(json.dumps(content))
        assert main(["accuracy", *arguments, *options]) == 2, arguments
        assert message in capsys.readouterr().err


def test_table() -> None:
    """Networks that failed have a row, too."""
    facts = {
        "mean_error": 0.034,
        "worst_error": 0.09,
        "kendall_tau": None,
        "pairs_compared": 0,
        "strategies": [{}] * 10,
        "calibrated": {"mean_error": 0.02, "worst_error": 0.05},
        "rest": {"restless": True},
    }
    report = {
        "machine": {"processor": "EPYC", "cores": 2, "software": "legate 26.1.0"},
        "options": {"strategies": 11, "seed": 3},
        "begun": "2026-11-24 08:00",
        "cases": {
            "lenet": {"seconds": 91.4, "facts": facts},
            "nmt": {"seconds": 3.2, "error": "it ended with status 1"},
        },
    }
    text = described([report])
    assert "EPYC, 2 cores, legate 26.1.0; 2026-11-24 08:00; 11 strategies, seed 3" in text
    assert "0/45" in text
    assert "too restless" in text
    assert "it ended with status 1" in text
