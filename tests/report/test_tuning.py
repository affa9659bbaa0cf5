"""What tuning found, as people read it."""

from __future__ import annotations

from typing import Any

from flexlegion.console.blocks import as_html, as_text
from flexlegion.report.tuning import described

FACTS: dict[str, Any] = {
    "chosen": "found from 'expert'",
    "reason": "found from 'expert' is chosen over data parallelism: it won 9 of 9 rounds, and its "
    "median speed-up is 1.21 (1.18 to 1.24 with 95% confidence)",
    "baseline": "data parallelism",
    "finalists": [
        {
            "name": "data parallelism",
            "iteration_time_ns": 12_000_000,
            "measured_iteration_time_ns": 12_100_000,
        },
        {
            "name": "found from 'expert'",
            "iteration_time_ns": 10_000_000,
            "measured_iteration_time_ns": 10_050_000,
            "rounds": 18,
            "won": 18,
            "speedups": [1.2, 1.21, 1.22] * 6,
            "median_speedup": 1.21,
            "interval": [1.18, 1.24],
            "verdict": "faster",
        },
        {
            "name": "found from 'data'",
            "iteration_time_ns": 11_000_000,
            "measured_iteration_time_ns": 12_500_000,
            "rounds": 1,
            "won": 0,
            "speedups": [0.97],
            "median_speedup": 0.97,
            "interval": None,
            "verdict": "undecided",
        },
    ],
    "tasks_measured": 1,
    "calibration": {"factor": 1.25, "runtime": 1.5},
    "rest": {"verdict": "at rest: as it should be"},
    "proposals": 1000,
    "seconds": 2.0,
}

TEXT = """\
lenet (batch 32) on cpu:0, cpu:1

strategy                simulated   measured   speed-up       interval     won
──────────────────────────────────────────────────────────────────────────────
data parallelism         12.00 ms   12.10 ms
found from 'expert' *    10.00 ms   10.05 ms       1.21   1.18 to 1.24   18/18
found from 'data'        11.00 ms   12.50 ms       0.97                    0/1

speed-up over data parallelism in each round:
found from 'expert'  1.20 1.21 1.22 1.20 1.21 1.22 1.20 1.21 1.22 1.20 1.21 1.22
                     1.20 1.21 1.22 1.20 1.21 1.22
found from 'data'    0.97

found from 'expert' is chosen over data parallelism: it won 9 of 9 rounds, and
its median speed-up is 1.21 (1.18 to 1.24 with 95% confidence).

1 task measured now; in training, they take 1.25 times as long, and the runtime
1.50 times; 1,000 proposals in 2.0 s

at rest: as it should be."""


def test_text() -> None:
    assert as_text(described("lenet (batch 32) on cpu:0, cpu:1", FACTS)) == TEXT


def test_html() -> None:
    html = as_html(described("lenet", FACTS))
    assert html.count("<tr>") == 4
    assert "found from &#x27;expert&#x27; *" in html


def test_nothing_to_compare() -> None:
    text = as_text(described("lenet", FACTS | {"finalists": FACTS["finalists"][:1]}))
    assert "in each round" not in text
