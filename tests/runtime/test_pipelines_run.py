"""A pipeline on two processors computes what one computes, and registers alone hold it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launch import run_legate

WORKER = Path(__file__).parent / "pipeline_worker.py"

pytestmark = pytest.mark.legion


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By the number of buffers, or "interleaved", what the worker found."""
    out = tmp_path_factory.mktemp("pipeline") / "result.json"
    run_legate(WORKER, out, cpus=2, timeout=300)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_same_weights(results: dict[str, Any]) -> None:
    """As of the whole batch on one processor."""
    assert {buffers: its["error"] < 1e-5 for buffers, its in results.items()} == {
        "1": True,
        "2": True,
        "interleaved": True,
    }


@pytest.mark.parametrize("buffers", [1, 2])
def test_back_pressure(results: dict[str, Any], buffers: int) -> None:
    """A micro-batch enters a stage when the one has left that had its register."""
    for lives in results[str(buffers)]["lives"]:
        for (_, left), (begins, _) in zip(lives, lives[buffers:], strict=False):
            assert begins >= left


def test_stages_overlap(results: dict[str, Any]) -> None:
    """With two registers, the first stage goes on while the second has the micro-batch before."""
    first, second = results["2"]["lives"]
    assert any(begins < end for (begins, _), (_, end) in zip(first[1:], second[:-1], strict=True))
