"""What the documentation says of published runs is what was written when they were simulated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from published import markdown, summary

DOCS = Path(__file__).parents[2] / "docs"


def test_tables_are_of_the_file() -> None:
    document = json.loads((DOCS / "measurements/published.json").read_text())
    assert markdown(document) in (DOCS / "results.md").read_text()
    said = [row for row in document["rows"] if row["ratio"] is not None]
    first = document["summaries"][0]
    for key, value in summary(said).items():
        assert first[key] == pytest.approx(value, rel=1e-4)  # ratios are rounded
    text = (DOCS / "programs.md").read_text()
    error, within, fit = (round(100 * first[key]) for key in ("mean_error", "within_30", "fit"))
    assert f"simulates {first['rows']} published training runs" in text
    assert f"the time is {error} %, {within} % are within 30 %, and {fit} % of what ran" in text
