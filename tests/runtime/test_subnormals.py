"""Numbers below the least normal one count as zeros in leaf tasks, on all of a team's threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from launch import run_legate

pytestmark = pytest.mark.legion


@pytest.mark.parametrize("threads", [1, 2])
def test_they_are_zeros(threads: int, tmp_path: Path) -> None:
    file = tmp_path / "found.npy"
    run_legate(Path(__file__).parent / "subnormals_worker.py", file, str(threads), cpus=1)
    found = np.load(file)
    assert np.array_equal(found[:, 1::2], np.zeros((2, 32)))
    assert np.allclose(found[:, ::2], 0.5e-30, rtol=1e-6, atol=0)
