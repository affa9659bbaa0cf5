"""Imported modules that meet corners of functions, empty masks, padding: as PyTorch has them."""

import json
from pathlib import Path

import numpy as np
import pytest
from launch import run_legate

pytestmark = pytest.mark.legion


def test_special_cases_compute_and_train_as_in_pytorch(tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    run_legate(Path(__file__).with_name("special_modules.py"), file, cpus=2)
    results = json.loads(file.read_text())
    assert len(results) > 15
    for name, result in results.items():
        pairs = (("predicted", "expected"), ("losses", "theirs"))
        for here, there in pairs:
            close = np.allclose(result[here], result[there], rtol=1e-4, atol=1e-5)
            assert close, f"{name}: {here} {result[here]}, in PyTorch {result[there]}"
