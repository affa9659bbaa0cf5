"""A benchmark that is ended leaves nothing behind, not even workers that are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from common.guardian import VARIABLE, started_by
from common.sides import BENCH

SECONDS = 30

# Two workers, each with a process in a session of its own, as legate's; both are stopped by then.
BENCHMARK = """
import sys
from common.sides import Side
worker = '''
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("{}", flush=True)
time.sleep(600)
'''
sides = [Side(name, [sys.executable, "-c", worker]) for name in ("one", "other")]
print("ready", flush=True)
if sys.argv[1] == "error":
    raise SystemExit("an error")
sides[0].process.wait()
"""


def started(words: str) -> set[int]:
    return {pid for word in words.split(":") for pid in started_by(word)}


@pytest.mark.parametrize("how", ["timeout", "SIGTERM", "SIGINT", "SIGKILL", "error"])
def test_nothing_is_left_of_a_benchmark(how: str) -> None:
    # The test's own word finds what the benchmark's guardian has to find by its.
    word = f"test.{os.getpid()}.{how}"
    variables = os.environ | {VARIABLE: word, "PYTHONPATH": str(BENCH)}
    command = [sys.executable, "-c", BENCHMARK, how]
    if how == "timeout":
        command = ["timeout", "600", *command]  # it hands on the signal that it gets
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    if how != "error":
        # The benchmark, its guardian, two workers, and one process of each; and timeout itself. A
        # process that was just made has no environment to be found by until it runs its program.
        wanted, deadline = 6 + (how == "timeout"), time.monotonic() + SECONDS
        while len(started(word)) < wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(started(word)) == wanted
        process.send_signal(signal.SIGTERM if how == "timeout" else getattr(signal, how))
    process.wait(SECONDS)
    deadline = time.monotonic() + SECONDS
    while (left := started(word)) and time.monotonic() < deadline:
        time.sleep(0.05)
    names = [Path(f"/proc/{pid}/cmdline").read_bytes()[:200] for pid in left]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not names
