"""The sides of a comparison: workers that take turns, so that only one computes at a time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.guardian import guarded
from common.processes import descendants

BENCH = Path(__file__).resolve().parents[1]
ROOT = BENCH.parents[1]
WORKERS = BENCH / "workers"
TICKS = os.sysconf("SC_CLK_TCK")
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # what processes, and their shells, end with


class WorkerError(Exception):
    """A worker ended before its time; the message has the end of what it said."""


def environment(root: Path | None = None) -> dict[str, str]:
    """Of workers: the legate command starts the first Python on the path; modules are from here.

    With another checkout's folder, commands and modules are that one's. What is started with it
    ends when this process ends.
    """
    python = Path(sys.executable).parent if root is None else root / ".venv" / "bin"
    bench = BENCH if root is None else root / BENCH.relative_to(ROOT)
    first = {"PATH": str(python), "PYTHONPATH": str(bench)}
    paths = {
        name: os.pathsep.join(filter(None, [folder, os.environ.get(name)]))
        for name, folder in first.items()
    }
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return os.environ | guarded() | as_root | paths


def legate(
    script: str,
    cpus: int,
    *args: str,
    sysmem: int | None = None,
    gpus: int = 0,
    ranks: int = 1,
    root: Path | None = None,
) -> list[str]:
    """A command line that runs a worker under legate.

    `sysmem` is MiB for Legion; it, `cpus` and `gpus` are each rank's; `root` as of `environment`.
    """
    program = shutil.which("legate", path=environment(root)["PATH"])
    if program is None:
        sys.exit("error: the legate command is not on the path; run scripts/setup.sh dev")
    # With as many CPU processors as cores, a second utility processor only takes their time.
    machine = ["--cpus", str(cpus), "--gpus", str(gpus), "--utility", "1"]
    if sysmem is not None:
        machine += ["--sysmem", str(sysmem)]
    if ranks > 1:
        where = ["--nodes", "1", "--ranks-per-node", str(ranks)]
        machine += ["--launcher", "mpirun", "--launcher-extra=--quiet --oversubscribe", *where]
    workers = WORKERS if root is None else root / WORKERS.relative_to(ROOT)
    return [program, *machine, str(workers / script), *args]


class Side:
    """A worker process and all that it started, stopped unless it computes.

    Idle workers that spin would take the others' time; a stopped process does not.

    Parameters
    ----------
    name
        For the tables.
    command, variables
        How to start it, and what to add to its environment.
    root
        Another checkout, whose worker it is.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        variables: Mapping[str, str] | None = None,
        root: Path | None = None,
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed when the side ends
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment(root) | dict(variables or {}),
        )
        # Kept, since the children of one that was killed are no longer found below it.
        self._processes: set[int] = set()
        self.answers: list[dict[str, Any]] = []
        self.other_load: list[float] = []  # share of the machine that others took in a round
        try:
            self.ready = self._answer()
        except WorkerError:
            self.end()
            raise
        self._signal(signal.SIGSTOP)

    @property
    def rates(self) -> list[float]:
        """Samples a second, of each round."""
        return [float(answer["samples_per_second"]) for answer in self.answers]

    @property
    def median(self) -> float:
        """The median rate."""
        return statistics.median(self.rates)

    def round(self, number: int) -> None:
        """Run one round."""
        self._signal(signal.SIGCONT)
        before = time.monotonic(), _busy_ticks(), self._own_ticks()
        assert self.process.stdin is not None
        self.process.stdin.write(f"round {number}\n")
        self.process.stdin.flush()
        self.answers.append(self._answer())
        seconds = time.monotonic() - before[0]
        others = (_busy_ticks() - before[1]) - (self._own_ticks() - before[2])
        self.other_load.append(max(0.0, others / TICKS / seconds / (os.cpu_count() or 1)))
        self._signal(signal.SIGSTOP)

    def end(self) -> None:
        """End the process and all that it started."""
        self._signal(signal.SIGKILL)
        self.process.wait()
        self._errors.close()

    def _signal(self, number: signal.Signals) -> None:
        self._processes.update(descendants(self.process.pid))
        for pid in self._processes:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _own_ticks(self) -> int:
        """Processor time that the worker's processes have taken."""
        total = 0
        for pid in descendants(self.process.pid):
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            total += int(fields[11]) + int(fields[12])
        return total

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines() or ["it said nothing"]
        if self.process.wait() in KILLED:
            said.append("it was killed, most likely because memory ran out: take fewer sides")
        raise WorkerError(f"{self.name} ended: {said[-1]}")


def alternate(commands: Mapping[str, Sequence[str]], rounds: int) -> list[Side]:
    """Start sides, by their names, have them take turns in so many rounds, and end them."""
    sides: list[Side] = []
    try:
        for name, command in commands.items():
            sides.append(Side(name, command))
        for number in range(1, rounds + 1):
            for side in sides:
                side.round(number)
    finally:
        for side in sides:
            side.end()
    return sides


def _busy_ticks() -> int:
    """Processor time that all processes have taken, and that the machine's host withheld."""
    numbers = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]))
    user, nice, system, _idle, _iowait, irq, softirq, steal = numbers[:8]
    return user + nice + system + irq + softirq + steal


def best(sides: Sequence[Side]) -> Side:
    """The side of the highest median."""
    return max(sides, key=lambda side: side.median)


def ratios(ours: Side, theirs: Side) -> list[float]:
    """How many times as fast, round by round."""
    return [a / b for a, b in zip(ours.rates, theirs.rates, strict=True)]
