"""A run on several ranks of which one gets a signal, and what becomes of the others."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launch import ROOT, ranks_command

WORKER = ROOT / "tests" / "runtime" / "lost_worker.py"
STAGES = ("imports", "Legion's start", "compile", "training", "between epochs", "end")
TICK = 0.02  # seconds between two looks


@dataclass
class Outcome:
    """What became of a run.

    Parameters
    ----------
    stage
        Where the rank was when it got the signal.
    seconds
        From then until no process was left, or None if some had to be killed. Time for which this
        process was stopped itself does not count.
    status
        The command's exit status.
    output
        What it said on standard error.
    """

    stage: str
    seconds: float | None
    status: int | None
    output: str

    def sentences(self) -> list[str]:
        """What ranks said of another."""
        return [line for line in self.output.splitlines() if line.startswith("error: rank ")]


class Run:
    """Training on several ranks of this machine, in the background."""

    def __init__(
        self, folder: Path, ranks: int, epochs: int, fault: str = "nothing", heartbeat: int = 30
    ) -> None:
        self._folder, self._ranks = folder, ranks
        self._error = folder / "stderr"
        command, environment = ranks_command(WORKER, folder, epochs, fault, ranks=ranks)
        name, value = "LOST_RANK_RUN", str(uuid.uuid4())
        self._mark = f"{name}={value}"  # in the environment of each of its processes
        with self._error.open("w") as error:
            self._process = subprocess.Popen(
                command,
                env=environment | {name: value, "FLEXLEGION_HEARTBEAT": str(heartbeat)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=error,
            )

    def left(self) -> list[int]:
        """Processes of the run that are there."""
        return [pid for pid in _pids() if self._mark in _environment(pid)]

    def rank(self, number: int) -> int | None:
        """The process of that rank, once it is there."""
        wanted = f"OMPI_COMM_WORLD_RANK={number}"
        for pid in self.left():
            if wanted in _environment(pid):
                return pid
        return None

    def stages(self, pid: int) -> list[str]:
        """What that process has come to."""
        file = self._folder / str(pid)
        return file.read_text().splitlines() if file.exists() else []

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> float | None:
        """How long it took, or None if it did not happen in time."""
        ticks = 0
        while not condition():
            if ticks * TICK >= seconds:
                return None
            time.sleep(TICK)
            ticks += 1
        return ticks * TICK

    def strike(self, number: int, stage: str, delay: float, blow: signal.Signals) -> str:
        """Send a rank a signal, some time after it has come to a stage ("" for its start)."""
        self.wait_for(lambda: self.rank(number) is not None, 60)
        pid = self.rank(number)
        assert pid is not None
        self.wait_for(lambda: stage in ["", *self.stages(pid)], 60)
        time.sleep(delay)
        os.kill(pid, blow)
        return (self.stages(pid) or ["start-up"])[-1]

    def interrupt(self, stage: str, blow: signal.Signals) -> None:
        """Send the command a signal once a rank has come to a stage."""
        self.wait_for(lambda: any(stage in self.stages(pid) for pid in self.left()), 60)
        self._process.send_signal(blow)

    def outcome(self, stage: str, limit: float) -> Outcome:
        """Wait until nothing is left of it; kill what is left after `limit` seconds."""
        seconds = self.wait_for(lambda: self._process.poll() is not None and not self.left(), limit)
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        self._process.wait()
        return Outcome(stage, seconds, self._process.returncode, self._error.read_text())


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environment(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it has ended, or is not ours
        return []
