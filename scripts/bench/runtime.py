"""How lean the runtime is: overhead a task, bytes copied, and speed beside PyTorch, in one run.

    python scripts/bench/runtime.py

Both sides keep a process each; rounds alternate between them, and whoever does not compute is
stopped, so that neither disturbs the other. Medians over rounds are compared. Needs the ``dev``
extra (PyTorch), and a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
TORCH_MODES = ("eager", "channels_last", "compiled")
STRATEGIES = {"lenet": ("data",), "mlp4096": ("data", "parameter")}
TARGETS = {"lenet": 1.0, "mlp4096": 1.5}


def environment() -> dict[str, str]:
    """The legate command starts the first Python on the path."""
    folder = str(Path(sys.executable).parent)
    return os.environ | {"PATH": folder + os.pathsep + os.environ["PATH"]}


def legate(script: str, cpus: int, *args: str) -> list[str]:
    """A command line that runs a worker under legate."""
    program = shutil.which("legate", path=environment()["PATH"])
    if program is None:
        sys.exit("error: the legate command is not on the path; run scripts/setup.sh dev")
    # With as many CPU processors as cores, a second utility processor only takes their time.
    machine = ["--cpus", str(cpus), "--gpus", "0", "--utility", "1"]
    return [program, *machine, str(HERE / script), *args]


class Side:
    """A worker process, stopped unless it computes."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        self.ready = self._answer()
        self.rates: list[float] = []
        self._signal(signal.SIGSTOP)

    def round(self, number: int) -> None:
        """Run one round."""
        self._signal(signal.SIGCONT)
        assert self.process.stdin is not None
        self.process.stdin.write(f"round {number}\n")
        self.process.stdin.flush()
        self.rates.append(float(self._answer()["samples_per_second"]))
        self._signal(signal.SIGSTOP)

    def end(self) -> None:
        """End the process and all that it started."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        sys.exit(f"error: the worker {self.name} ended; run it by hand to see why")


def compare(workload: str, cpus: int, rounds: int) -> list[Side]:
    """Alternate rounds of all sides."""
    sides = []
    for strategy in STRATEGIES[workload]:
        command = legate(
            "flexlegion_worker.py", cpus, "--workload", workload, "--strategy", strategy
        )
        sides.append(Side(f"flexlegion {strategy}", command))
    for mode in TORCH_MODES:
        if mode == "channels_last" and workload != "lenet":
            continue
        command = [sys.executable, str(HERE / "torch_worker.py"), "--workload", workload]
        sides.append(Side(f"PyTorch {mode}", [*command, "--threads", str(cpus), "--mode", mode]))
    for number in range(1, rounds + 1):
        for side in sides:
            side.round(number)
    for side in sides:
        side.end()
    return sides


def best(sides: list[Side], prefix: str) -> Side:
    """The side of the highest median."""
    mine = [side for side in sides if side.name.startswith(prefix)]
    return max(mine, key=lambda side: statistics.median(side.rates))


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cpus", type=int, default=2, help="processors of each side; default: 2")
    parser.add_argument("--rounds", type=int, default=7, help="default: 7")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    console = Console(width=110)
    results: dict[str, Any] = {}

    output = subprocess.run(
        legate("overhead_worker.py", 2),
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    ).stdout
    overhead = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    micro = statistics.median(overhead["microseconds"])
    results["overhead_us_per_task"] = overhead["microseconds"]
    console.print(
        f"overhead: {micro:.1f} us per point task with the trace "
        f"({min(overhead['microseconds']):.1f} to {max(overhead['microseconds']):.1f} in "
        f"{len(overhead['microseconds'])} rounds; target: 15 or less)"
    )
    for workload in STRATEGIES:
        sides = compare(workload, args.cpus, args.rounds)
        table = Table(title=workload)
        for column in ("side", "samples/s, median", "lowest", "highest", "copied bytes"):
            table.add_column(column, justify="left" if column == "side" else "right")
        for side in sides:
            copied = side.ready.get("copied_bytes", "")
            table.add_row(
                side.name,
                f"{statistics.median(side.rates):,.0f}",
                f"{min(side.rates):,.0f}",
                f"{max(side.rates):,.0f}",
                str(copied),
            )
        console.print(table)
        ours, theirs = best(sides, "flexlegion"), best(sides, "PyTorch")
        ratios = [a / b for a, b in zip(ours.rates, theirs.rates, strict=True)]
        ratio = statistics.median(ratios)
        console.print(
            f"{workload}: {ours.name} is {ratio:.2f}x {theirs.name} "
            f"({min(ratios):.2f} to {max(ratios):.2f}; target: {TARGETS[workload]:.1f}x)\n"
        )
        results[workload] = {
            "rates": {side.name: side.rates for side in sides},
            "copied_bytes": {s.name: s.ready["copied_bytes"] for s in sides if "tasks" in s.ready},
            "ratio": ratio,
        }
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
