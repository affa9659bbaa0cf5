"""What scripts/gpu_check.sh does with steps that pass, fail, hang, or cannot run; without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import gpu_check
import numpy as np
import operators
import pytest
from gpu_check import FAILED, NOT_RUN, PASSED, Check, Step
from launch import ROOT


@pytest.fixture
def checked() -> Check:
    return Check(60, {"PATH": "/usr/bin:/bin"})


def test_outcomes(checked: Check) -> None:
    assert checked.run(Step("good", ["true"], 10)).outcome == PASSED
    bad = checked.run(Step("bad", ["sh", "-c", "echo why; exit 3"], 10))
    assert (bad.outcome, bad.note, bad.output) == (FAILED, "exit status 3", "why")
    assert checked.run(Step("none", ["/no/such/program"], 10)).outcome == FAILED
    missing = checked.run(Step("missing", ["true"], 10, "no sanitizer"))
    assert (missing.outcome, missing.note) == (NOT_RUN, "no sanitizer")


def test_a_step_that_hangs_is_ended_with_all_that_it_started(checked: Check) -> None:
    started = time.monotonic()
    mark = f"9{os.getpid()}"
    hanging = checked.run(Step("hangs", ["sh", "-c", f"setsid sleep {mark} & wait"], 1))
    assert (hanging.outcome, hanging.note) == (FAILED, "not done after 1 s")
    assert time.monotonic() - started < 30
    while any(mark.encode() in command.split(b"\0") for command in commands()):
        assert time.monotonic() - started < 30, "what the step started is alive"
        time.sleep(0.05)


def commands() -> Iterator[bytes]:
    """The command lines of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            yield path.read_bytes()


def test_what_comes_after_the_time_fails() -> None:
    result = Check(0, {}).run(Step("late", ["true"], 10))
    assert (result.outcome, result.note) == (FAILED, "the time was over before its turn")


def test_all_steps_can_be_named(tmp_path: Path) -> None:
    steps = [*gpu_check.checking_steps(tmp_path), *gpu_check.timing_steps(tmp_path, tmp_path / "b")]
    names = [step.name for step in [*gpu_check.build_steps(), *steps]]
    assert len(set(names)) == len(names)
    assert {"cuda_tests", "operators bf16", "mixed nmt", "train alexnet", "benchmark"} <= {*names}
    for step in steps:
        for argument in step.command:
            if argument.endswith(".py"):
                assert Path(argument).exists(), argument


def test_commands_of_this_interpreter(tmp_path: Path) -> None:
    gpu_check.commands_folder(tmp_path)
    code = "import sys; print(sys.prefix)"
    done = subprocess.run([tmp_path / "python", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == sys.prefix


def test_without_a_gpu() -> None:
    if list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("not applicable: there is a GPU")
    command = ["bash", str(ROOT / "scripts" / "gpu_check.sh"), "--python", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "gpu_check: there is no NVIDIA GPU on this machine.\n"
    assert done.stdout == ""


def test_errors_of_operators() -> None:
    expected = {"0/value/a": np.array([3.0, 4.0]), "1/weight/w": np.array([1.0])}
    actual = {"0/value/a": np.array([3.0, 4.5]), "1/weight/w": np.array([np.nan])}
    found = operators.errors(actual, expected)
    assert found["0/value/a"] == pytest.approx(0.1)
    assert found["1/weight/w"] == float("inf")
    assert operators.errors(actual, expected, first=True).keys() == {"0/value/a"}
    assert operators.errors({}, expected)["0/value/a"] == float("inf")
