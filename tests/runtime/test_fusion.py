"""Fused launches compute what single ones compute, bit by bit, and delay nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launch import run_legate
from networks import NETWORKS

WORKER = Path(__file__).parent / "fusion_worker.py"

pytestmark = pytest.mark.legion


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the worker found, on two processors."""
    out = tmp_path_factory.mktemp("fusion") / "result.json"
    run_legate(WORKER, out, cpus=2, timeout=600)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_fusing_changes_no_bit(results: dict[str, Any]) -> None:
    """Outputs, gradients, losses, weights of three steps, and placements."""
    assert {case: r["different"] for case, r in results["equal"].items() if r["different"]} == {}


def test_fewer_launches(results: dict[str, Any]) -> None:
    """On one device nearly all become one, of whole operators on two devices few do."""
    for case, found in results["equal"].items():
        alone, three, sixteen = found["issued"]
        assert sixteen <= three <= alone
        if case.endswith("single"):
            assert sixteen <= alone / 3, case
        if case == "activations data":
            assert sixteen <= 7


def test_the_simulator_foresees_it(results: dict[str, Any]) -> None:
    """Launch by launch, but for clipped gradients, whose launches the simulator does not know.

    tests/native/fusion_test.cc compares thousands of random graphs, without Legion.
    """
    cases = {
        case: found
        for case, found in results["equal"].items()
        if NETWORKS[case.split()[0]].optimizer.clip_norm is None
    }
    assert {case: found["wrong"] for case, found in cases.items() if found["wrong"]} == {}
    assert sum(found["fused"] for found in cases.values()) > 100


def test_launches_that_wait_for_the_same_run_together(results: dict[str, Any]) -> None:
    """The statistics of a batch need both devices, so moments come between."""
    assert results["normalized"] == [
        ["conv1", "bn1.statistics"],
        ["bn1.moments"],
        ["bn1", "conv2", "bn2.statistics"],
        ["bn2.moments"],
        ["bn2", "flat", "out", "loss.own_logit", "loss.logit_statistics"],
        ["loss"],
    ]


def test_nobody_waits_longer(results: dict[str, Any]) -> None:
    """What another device needs is not held back, nor does anything wait for what it needs not."""
    assert results["awaited"] == [["a"], ["b"], ["c", "d"], ["e", "f", "g"]]
