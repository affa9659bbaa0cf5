"""`kill -9` at random moments of training, resumed each time: the same bits as if nobody had.

    python tests/long/kill_checkpoints.py [--kills 100] [--ranks 1,2] [--seed 0]

Trains a small network (convolution, batch norm, dropout, Adam, a schedule, validation, a short last
batch) with a checkpoint every 60 iterations. Every third kill waits until a checkpoint is being
written. Of two ranks, either both are killed or one of them, and mpirun ends the other. What was
killed is resumed, and may be killed again; when a training ends by itself, all its weights, Adam's
states and running averages are compared with those of one that nobody killed, and another one
begins. Prints a line for each number of ranks, and exits with 1 if a bit differs, a resumption
fails, or something incomplete is left. About five seconds a kill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from launch import legate_command, legate_environment, ranks_command

from flexlegion.training.checkpoints.files import TEMPORARY, folders

WORKER = Path(__file__).parents[1] / "runtime" / "checkpoint_worker.py"
EPOCHS, EVERY = 30, 60  # of 32 iterations each
LONGEST = 1.5  # seconds from the first iteration to a kill
PATIENCE = 300  # seconds for anything
POLL = 0.0005
NOT_THE_MODEL = ("steps", "losses")  # of the process that ended, since it was resumed


@dataclass
class Killing:
    """Trainings on so many ranks, and what became of them."""

    folder: Path
    ranks: int
    random: random.Random
    kills: int = 0
    while_written: int = 0
    finished: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def kept(self) -> Path:
        """The checkpoints."""
        return self.folder / "kept"

    def start(self, checkpoint: bool) -> subprocess.Popen[bytes]:
        """Begin or resume."""
        for old in self.folder.glob("started.*"):
            old.unlink()
        options = {"out": str(self.folder / "trained.npz"), "epochs": EPOCHS}
        options["started"] = str(self.folder / "started")
        if checkpoint:
            options |= {"checkpoint": str(self.kept), "every": EVERY, "resume": True}
        if self.ranks > 1:
            command, environment = ranks_command(WORKER, json.dumps(options), ranks=self.ranks)
        else:
            command = legate_command(WORKER, json.dumps(options), cpus=2)
            environment = legate_environment()
        with (self.folder / "log").open("wb") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def trained(self) -> dict[str, bytes]:
        """All bits of what was trained, and of the losses of epochs."""
        with np.load(self.folder / "trained.npz") as arrays:
            return {name: arrays[name].tobytes() for name in set(arrays) - set(NOT_THE_MODEL)}

    def writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return any(
            name.startswith(TEMPORARY) and "-step-" in name for name in os.listdir(self.kept)
        )

    def kill(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for a moment, and kill; False if the training was faster."""
        notes = [self.folder / f"started.{rank}" for rank in range(self.ranks)]
        while not all(note.exists() and note.read_text().endswith("\n") for note in notes):
            if process.poll() is not None:
                return False
            time.sleep(POLL)
        wait_for_writing = self.kills % 3 == 2
        time.sleep(self.random.uniform(0, LONGEST / (2 if wait_for_writing else 1)))
        while wait_for_writing and not self.writing():
            if process.poll() is not None:
                return False
            time.sleep(POLL)
        if wait_for_writing:
            time.sleep(self.random.uniform(0, 0.02))
        written = self.writing()
        pids = [int(note.read_text()) for note in notes]
        if self.ranks > 1 and self.random.random() < 0.5:
            pids = [self.random.choice(pids)]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return False
        self.kills += 1
        self.while_written += written
        return True

    def run(self, wanted: int) -> None:
        """Kill as often as wanted, and let the last one come to its end."""
        self.start(False).wait(PATIENCE)
        expected = self.trained()
        while True:
            (self.folder / "trained.npz").unlink(missing_ok=True)
            process = self.start(True)
            killed = self.kills < wanted and self.kill(process)
            status = process.wait(PATIENCE)
            if killed:
                continue
            if status != 0:
                log = (self.folder / "log").read_text(errors="replace")[-2000:]
                self.problems.append(
                    f"not resumed after {self.kills} kills: status {status}\n{log}"
                )
                return
            self.finished += 1
            trained = self.trained()
            other = [name for name in expected if trained[name] != expected[name]]
            if other:
                self.problems.append(f"other bits after {self.kills} kills: {', '.join(other)}")
            left = {path.name for path in self.kept.iterdir()}
            if left != {path.name for path in folders(self.kept)}:
                self.problems.append(f"left after {self.kills} kills: {', '.join(sorted(left))}")
            shutil.rmtree(self.kept)
            if self.kills >= wanted:
                return


def main() -> int:
    """Run all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="on each number of ranks")
    parser.add_argument("--ranks", default="1,2", help="default: 1,2")
    parser.add_argument("--seed", type=int, default=0, help="of the moments; default: 0")
    args = parser.parse_args()
    problems = []
    for ranks in map(int, args.ranks.split(",")):
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            killing = Killing(Path(folder), ranks, random.Random(args.seed))
            killing.run(args.kills)
        problems += killing.problems
        print(
            f"{ranks} rank{'s' * (ranks > 1)}: {killing.kills} kills, {killing.while_written} of "
            f"them while a checkpoint was written; {killing.finished} trainings came to their end, "
            f"{len(killing.problems)} problems ({time.perf_counter() - began:.0f} s)",
            flush=True,
        )
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
