"""A hundredth of scripts/bench/faults.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FAULTS = Path(__file__).parents[2] / "scripts" / "bench" / "faults.py"


def test_a_hundredth_of_the_hostile_inputs() -> None:
    command = [sys.executable, str(FAULTS), "--share", "0.01"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
