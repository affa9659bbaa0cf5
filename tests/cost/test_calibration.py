"""Calibration by one strategy's training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flexlegion.cost.measured import Calibration
from flexlegion.tuner.calibration import MOST, calibrated

MS = 1_000_000


def test_calibration() -> None:
    """Tasks of 8 ms took 8 or 12 ms; of two chains of launches, the longer decides."""

    def simulate(calibration: Calibration) -> Any:
        factor, runtime = calibration.factor, calibration.runtime
        chains = (MS * (4 * factor + 2.5 * runtime), MS * (6 * factor + runtime))
        return SimpleNamespace(
            problem=SimpleNamespace(devices=SimpleNamespace(names=["cpu:0", "cpu:1"])),
            load_ns={"cpu:0": 2 * MS * factor, "cpu:1": 6 * MS * factor, "a link": 7 * MS},
            iteration_time_ns=round(max(chains)),
        )

    assert calibrated(simulate, 9 * MS, 8 * MS) == Calibration(1.0, pytest.approx(2, rel=2e-3))
    assert calibrated(simulate, 15 * MS, 12 * MS) == Calibration(1.5, pytest.approx(3.6, rel=2e-3))
    assert calibrated(simulate, 5 * MS, 8 * MS) == Calibration(1.0, 0)  # the runtime takes nothing
    assert calibrated(simulate, 900 * MS, 8 * MS) == Calibration(1.0, MOST)


@pytest.mark.parametrize("launches", [0.0, 0.1])
def test_a_runtime_that_hardly_shows_tells_nothing(launches: float) -> None:
    """Then tasks, which take 4 ms, have all of the difference."""

    def simulate(calibration: Calibration) -> Any:
        tasks = 4 * MS * calibration.factor
        return SimpleNamespace(
            problem=SimpleNamespace(devices=SimpleNamespace(names=["cpu:0"])),
            load_ns={"cpu:0": tasks},
            iteration_time_ns=round(tasks + MS * launches * calibration.runtime),
        )

    found = calibrated(simulate, 6 * MS, 5 * MS)
    assert found == Calibration(pytest.approx((6 - launches) / 4), 1.0)
    assert simulate(found).iteration_time_ns == pytest.approx(6 * MS)
