"""What the documentation says of simulated runs is what was written when they were simulated."""

from __future__ import annotations

import json
from pathlib import Path

import flexflow_figure7
import flexflow_figures
import oneflow_figures
import peers
import pytest
from published import markdown, summary

DOCS = Path(__file__).parents[2] / "docs"


def test_tables_are_of_the_file() -> None:
    document = json.loads((DOCS / "measurements/published.json").read_text())
    results = (DOCS / "results.md").read_text()
    assert markdown(document) in results
    assert oneflow_figures.markdown(document) in results
    said = [row for row in document["rows"] if row["ratio"] is not None]
    first = document["summaries"][0]
    for key, value in summary(said).items():
        assert first[key] == pytest.approx(value, rel=1e-4)  # ratios are rounded
    text = (DOCS / "programs.md").read_text()
    error, within, fit = (round(100 * first[key]) for key in ("mean_error", "within_30", "fit"))
    assert f"simulates {first['rows']} published training runs" in text
    assert f"the time is {error} %, {within} % are within 30 %, and {fit} % of what ran" in text


def test_tables_of_strategies_are_of_their_files() -> None:
    results, readme = ((DOCS / name).read_text() for name in ("results.md", "../README.md"))
    for name, machine, gpus in (
        ("flexflow-figure7", "p100", 16),
        ("flexflow-figure7", "k80", 64),
        ("found-p100x16", "p100", 16),
    ):
        document = json.loads((DOCS / f"measurements/{name}.json").read_text())
        assert flexflow_figure7.markdown(document, machine, gpus) in results
    for row in document["rows"]:
        times = (row["times_ms"][way] for way in ("data", "expert", "found"))
        assert " | ".join(f"{its:.1f} ms" for its in times) in readme


@pytest.mark.parametrize("figure", flexflow_figures.FIGURES)
def test_other_figures_are_of_their_file(figure: str) -> None:
    document = json.loads((DOCS / "measurements/flexflow-figures.json").read_text())
    note = (DOCS / "notes/strategies-found-beside-the-papers.md").read_text()
    assert flexflow_figures.markdown(document, figure) in note


@pytest.mark.parametrize("case", [case.name for case in peers.CASES])
def test_other_searches_are_of_their_file(case: str) -> None:
    document = json.loads((DOCS / "measurements/peers.json").read_text())
    note = (DOCS / "notes/beside-other-searches.md").read_text()
    assert peers.markdown(document, case) in note
