"""What a model learned here is what the module predicts with it in PyTorch."""

from pathlib import Path

import numpy as np
import pytest
from launch import run_legate

pytestmark = pytest.mark.legion


def test_the_module_predicts_what_the_model_does(tmp_path: Path) -> None:
    file = tmp_path / "saved.npz"
    run_legate(Path(__file__).with_name("trained_module.py"), file, cpus=2)
    with np.load(file) as saved:
        assert np.abs(saved["predicted"] - saved["before"]).max() > 1e-2
        assert np.abs(saved["moved"]).min() > 1e-2  # eval mode reads running averages
        np.testing.assert_allclose(saved["same"], saved["predicted"], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(saved["anew"], saved["same"])
