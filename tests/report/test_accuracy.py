"""Comparisons of simulated with measured times, on made-up numbers; the command's mistakes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flexlegion.cli import main
from flexlegion.report.accuracy import (
    Comparison,
    described,
    kendall_tau,
    noise_ns,
    summary,
)

MS = 10**6


def comparison(name: str, simulated: int, measured: int, noise: int = 0) -> Comparison:
    """Times in ms; of both, the busiest device computes for the half."""
    simulated, measured = simulated * MS, measured * MS
    return Comparison(
        name,
        simulated,
        measured,
        noise * MS,
        "cpu:1",
        simulated // 2,
        measured // 2,
        0,
        {"measured": 3},
    )


def test_attribution() -> None:
    """10 ms simulated, of them 7 busy; 16 measured, of them 9 busy: 2 by operators, 4 by idling."""
    c = Comparison("data", 10 * MS, 16 * MS, 1, "cpu:0", 7 * MS, 9 * MS, 5, {})
    assert c.error == pytest.approx(-0.375)
    assert c.operators_ns == 2 * MS
    assert c.waiting_ns == 4 * MS
    assert c.operators_ns + c.waiting_ns == 16 * MS - 10 * MS
    assert c.facts()["transfer_time_ns"] == 5


def test_errors_count_without_their_sign() -> None:
    """Simulated 12 and 6 for a measured 10: errors of 20 % and -40 %."""
    figures = summary([comparison("a", 12, 10), comparison("b", 6, 10)])
    assert [s["error"] for s in figures["strategies"]] == pytest.approx([0.2, -0.4])
    assert figures["mean_error"] == pytest.approx(0.3)
    assert figures["worst_error"] == pytest.approx(0.4)


def test_kendall_tau() -> None:
    """Of three pairs, two in the right order and one in the wrong: (2 - 1) / 3."""
    a, b, c = comparison("a", 1, 10), comparison("b", 3, 20), comparison("c", 2, 30)
    assert kendall_tau([a, b, c]) == pytest.approx(1 / 3)
    assert kendall_tau([a, b]) == 1
    assert kendall_tau([b, c]) == -1
    # Of equal simulated times, none comes first.
    assert kendall_tau([a, b, comparison("d", 3, 40)]) == pytest.approx(2 / 3)


def test_pairs_within_noise_do_not_count() -> None:
    """The wrong order of two whose measured times differ by no more than either's noise."""
    a, b = comparison("a", 2, 10), comparison("b", 1, 12, noise=2)
    assert kendall_tau([a, b]) is None
    assert kendall_tau([a, b, comparison("c", 3, 30)]) == 1
    assert summary([a])["kendall_tau"] is None
    assert "no times differ by more than noise" in described([a, b])


def test_noise() -> None:
    """The quartiles of 1 to 5 s are 2 and 4."""
    assert noise_ns([5.0, 1.0, 3.0, 2.0, 4.0]) == 2 * 10**9
    assert noise_ns([1.0]) == 0


def test_text() -> None:
    text = described([comparison("data", 12, 10, noise=1), comparison("single", 18, 20)])
    assert "12.00 ms" in text
    assert "+20.0%" in text
    assert "mean error     15.0%" in text
    assert "Kendall's tau  1.000, over 1 of 1 pair that differ" in text


def test_mistakes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Found before anything starts."""
    monkeypatch.delenv("LEGATE_CONFIG", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for arguments, message in (
        (["--model", "nosuch"], "unknown model 'nosuch'"),
        (["--model", "mlp", "--rounds", "0"], "--rounds has to be at least 1"),
        (["--model", "mlp", "--size", "nosuch=1"], "model 'mlp' has no size 'nosuch'"),
        (["--model", "mlp"], "this command trains, for which it needs legate"),
    ):
        assert main(["accuracy", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert message in err
