"""Comparisons of simulated with measured times, on made-up numbers; the command's mistakes."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from flexlegion.cli.main import main
from flexlegion.profiling.accuracy import (
    Comparison,
    Parts,
    clear_orders,
    described,
    figures,
    summary,
)
from flexlegion.profiling.intervals import Estimate

MS = 10**6


def estimate(value: float, width: float = 0.0) -> Estimate:
    """Milliseconds, and by how much more or less the interval goes."""
    return Estimate(value * MS, (value - width) * MS, (value + width) * MS)


def comparison(name: str, simulated: int, measured: int, width: float = 0.0) -> Comparison:
    """Times in ms; simulated tasks take half of both, and launches 1 and 2 ms."""
    half = measured * MS // 2
    return Comparison(
        name,
        simulated * MS,
        (simulated + measured) * MS // 2,
        estimate(measured, width),
        9,
        "cpu:1",
        Parts(half, MS, simulated * MS - half - MS),
        Parts(half, 2 * MS, measured * MS - half - 2 * MS),
        0,
        {"measured": 3},
    )


def test_attribution() -> None:
    """10 ms simulated, 16 measured: one more in launches, five more in waits."""
    c = comparison("data", 10, 16)
    assert c.error == pytest.approx(-0.375)
    assert c.calibrated_error == pytest.approx(-0.1875)
    assert c.difference == Parts(0, MS, 5 * MS)
    assert sum(vars(c.difference).values()) == c.measured_ns - c.iteration_time_ns
    assert c.facts()["difference_ns"] == {"tasks": 0, "launches": MS, "waits": 5 * MS}


def test_errors_count_without_their_sign() -> None:
    """Simulated 12 and 6 for a measured 10: errors of 20 % and -40 %, calibrated half of that."""
    found = summary([comparison("a", 12, 10), comparison("b", 6, 10)])
    assert [s["error"] for s in found["strategies"]] == pytest.approx([0.2, -0.4])
    assert found["mean_error"] == pytest.approx(0.3)
    assert found["worst_error"] == pytest.approx(0.4)
    assert found["calibrated"]["mean_error"] == pytest.approx(0.15)


def test_kendall_tau() -> None:
    """Of three pairs, two in the right order and one in the wrong: (2 - 1) / 3."""
    a, b, c = (1, estimate(10)), (3, estimate(20)), (2, estimate(30))
    assert figures([a, b, c]).kendall_tau == pytest.approx(1 / 3)
    assert figures([a, b]).kendall_tau == 1
    assert figures([b, c]).kendall_tau == -1
    # Of equal simulated times, none comes first.
    assert figures([a, b, (3, estimate(40))]).kendall_tau == pytest.approx(2 / 3)


def test_pairs_whose_intervals_overlap_do_not_count() -> None:
    """The wrong order of 10 +- 1.5 and 12 +- 1 ms; too few rounds for any interval."""
    a, b = (2, estimate(10, 1.5)), (1, estimate(12, 1))
    assert clear_orders([a, b]) == []
    assert figures([a, b]).kendall_tau is None
    assert clear_orders([a, (1, estimate(12, 0.4))]) == [-1]
    assert clear_orders([a, (3, Estimate(30, 0, math.inf))]) == []
    assert "no measured intervals are apart" in described([comparison("a", 12, 10)])


def test_text() -> None:
    text = described([comparison("data", 12, 10, width=1), comparison("single", 18, 20)])
    assert "12.00 ms" in text
    assert "10.0%" in text
    assert "+20.0%" in text
    assert "mean error     15.0% (calibrated 7.5%)" in text
    assert "Kendall's tau  1.000 (calibrated 1.000), over 1 of 1 pair whose" in text
    assert max(len(line) for line in text.splitlines() if "ms" in line) <= 80  # tables


def test_mistakes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Found before anything starts."""
    monkeypatch.delenv("LEGATE_CONFIG", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for arguments, message in (
        (["--model", "nosuch"], "unknown model 'nosuch'"),
        (["--model", "mlp", "--rounds", "0"], "--rounds has to be at least 1"),
        (["--model", "mlp", "--trial-budget", "soon"], "soon"),
        (["--model", "mlp", "--size", "nosuch=1"], "model 'mlp' has no size 'nosuch'"),
        (["--model", "mlp"], "this command runs models, for which it needs legate"),
    ):
        assert main(["accuracy", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert message in err
