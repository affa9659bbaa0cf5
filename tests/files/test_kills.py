"""Two kills of tests/long/kills.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

KILLS = Path(__file__).parents[1] / "long" / "kills.py"


def test_two_kills_of_a_search() -> None:
    command = [sys.executable, str(KILLS), "--kills", "2", "--kinds", "search"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "search: 2 kills" in done.stdout
