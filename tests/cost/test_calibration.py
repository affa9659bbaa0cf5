"""Calibration by one strategy's training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flexlegion.cost.measured import Calibration
from flexlegion.tuner.calibration import calibrated

MS = 1_000_000


def test_calibration() -> None:
    """Tasks of 8 ms took 8 or 12 ms; of two chains of launches, the longer decides."""

    def simulate(calibration: Calibration) -> Any:
        factor, launch = calibration.factor, calibration.launch_ns or 0
        chains = (4 * MS * factor + 5 * launch, 6 * MS * factor + launch)
        return SimpleNamespace(
            problem=SimpleNamespace(devices=SimpleNamespace(names=["cpu:0", "cpu:1"])),
            load_ns={"cpu:0": 2 * MS * factor, "cpu:1": 6 * MS * factor, "a link": 7 * MS},
            iteration_time_ns=round(max(chains)),
        )

    found = calibrated(simulate, 9 * MS, 8 * MS)
    assert found == Calibration(1.0, MS)
    assert calibrated(simulate, 15 * MS, 12 * MS) == Calibration(1.5, 1_800_000)
    assert calibrated(simulate, 5 * MS, 8 * MS) == Calibration(1.0, 0)  # nothing passes between
