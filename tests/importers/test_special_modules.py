"""Imported modules that meet corners of functions, empty masks, padding: as PyTorch has them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launch import run_legate

pytestmark = pytest.mark.legion


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the worker saved."""
    file = tmp_path_factory.mktemp("special") / "saved.json"
    run_legate(Path(__file__).with_name("special_modules.py"), file, cpus=2)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_special_cases_compute_and_train_as_in_pytorch(saved: dict[str, Any]) -> None:
    assert len(saved["trained"]) > 25
    for name, result in saved["trained"].items():
        pairs = (("predicted", "expected"), ("losses", "theirs"))
        for here, there in pairs:
            close = np.allclose(result[here], result[there], rtol=1e-4, atol=1e-5)
            assert close, f"{name}: {here} {result[here]}, in PyTorch {result[there]}"


def test_dropout_of_features_drops_whole_channels(saved: dict[str, Any]) -> None:
    reached = np.asarray(saved["reached"])
    assert set(reached.sum(1)) == {0, 5}
    assert 16 < (reached[:, 0] == 0).sum() < 48  # of 64, half are dropped
