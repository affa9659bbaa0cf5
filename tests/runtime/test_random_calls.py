"""A few of the sequences of calls of tests/long/random_calls.py, on several ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.legion

SCRIPT = Path(__file__).parents[1] / "long" / "random_calls.py"


@pytest.mark.parametrize(("machine", "sequences"), [("2", 10), ("3", 5), ("2x2", 5)])
def test_ranks_do_what_one_process_does(machine: str, sequences: int) -> None:
    options = ["--machines", machine, "--sequences", str(sequences)]
    run = subprocess.run(
        [sys.executable, SCRIPT, *options], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{machine}: 0 of {sequences} sequences differ" in run.stdout
