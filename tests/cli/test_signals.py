"""Signals to commands: they end soon, with one sentence, and with what was found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 20  # that an end may take on a busy machine; it takes less than one on a quiet one
SEARCH = ["search", "--model", "lenet", "--machine", "p100x4", "--budget", "10m", "--chains", "1"]
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}


def start(*args: str) -> subprocess.Popen[str]:
    """``flexlegion ARGS``."""
    return subprocess.Popen(
        [sys.executable, "-m", "flexlegion", *args],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", STATUS)
def test_search_keeps_the_best(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "s.json"
    with start(*SEARCH, "--start", "data", "--out", str(out)) as process:
        time.sleep(4)
        process.send_signal(number)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == STATUS[number]
    assert err.splitlines()[-1].startswith("interrupted")
    assert "Traceback" not in err
    if out.exists():  # the search had begun
        assert json.loads(out.read_text())["operators"]
        assert err.splitlines()[-1] == f"interrupted; {out} has the best strategy so far"
    assert set(os.listdir(tmp_path)) <= {"s.json"}  # no temporary is left


@pytest.mark.parametrize("delay", [0.15, 0.25, 0.4])
def test_early(delay: float) -> None:
    """During the imports, too."""
    with start("explain", "expert", "--model", "nmt", "--machine", "k80x64") as process:
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
    # Before Python runs any code of ours, the signal itself ends it, or Python says so.
    assert process.returncode in (130, -signal.SIGINT)
    assert "flexlegion" not in err or process.returncode == 130
