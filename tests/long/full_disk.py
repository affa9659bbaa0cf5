"""Checkpoints on a disk that is full: one sentence, the one before stays, training goes on.

    python tests/long/full_disk.py [--ranks 1,2]

Trains LeNet with checkpoints on a file system of bounded size, which it mounts (as root alone can)
in memory: with room for none, for one and a half while one is kept, and with room again after
a while. Prints a line for each, and exits with 1 if anything was otherwise than it says. About 15
seconds a line.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from flexlegion.training.checkpoints.files import Checkpoint, folders

FLEXLEGION = (sys.executable, "-m", "flexlegion")
TRAIN = ("train", "--model", "lenet", "--cpus", "1", "--optimizer", "adam", "--seed", "1")
EVERY, KEEP = 5, 1
FULL = "No space left on device"
FAILED = re.compile(r"warning: .*: the checkpoint cannot be written there \((rank 1: )?" + FULL)
PATIENCE = 300  # seconds for a training


class Disk:
    """A file system in memory, with a folder for checkpoints; beside it, what training says."""

    def __init__(self, folder: Path) -> None:
        self.errors = folder / "errors"
        self.folder = folder / "disk"
        self.folder.mkdir()
        self.kept = self.folder / "kept"
        self.filler = self.folder / "filler"
        self._mount("size=1g", "tmpfs")

    def resize(self, size: int) -> None:
        """Have it end there."""
        self._mount(f"remount,size={-(-size // 4096) * 4096}", "tmpfs")

    def close(self) -> None:
        """Take it away."""
        subprocess.run(["umount", str(self.folder)], check=True)

    def _mount(self, options: str, kind: str) -> None:
        subprocess.run(["mount", "-t", kind, "-o", options, kind, str(self.folder)], check=True)


def train(disk: Disk, ranks: int, *options: str, epochs: int = 2) -> tuple[int, str, str]:
    """Status, standard output and standard error."""
    saving = ("--checkpoint", str(disk.kept), "--every", str(EVERY), "--keep", str(KEEP))
    several = ("--ranks", str(ranks)) if ranks > 1 else ()
    command = [*FLEXLEGION, *TRAIN, "--epochs", str(epochs), *saving, *several, *options]
    with disk.errors.open("w") as errors:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=PATIENCE
        )
    return done.returncode, done.stdout, disk.errors.read_text()


def names(disk: Disk) -> list[str]:
    """What is in the checkpoints' folder."""
    return sorted(path.name for path in disk.kept.iterdir())


def check(condition: bool, *what: object) -> None:
    """Stop here with what was seen."""
    if not condition:
        raise SystemExit("\n".join(map(str, ("not as it should be:", *what))))


def no_room(disk: Disk, ranks: int, size: int) -> str:
    """Nothing can be written from the start: training ends, its weights are written, status 2."""
    disk.resize(size // 2)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "w.npz"
        status, said, errors = train(disk, ranks, "--save-weights", str(file))
        check(status == 2, status, errors)
        check("test  loss" in said, said)
        check("Traceback" not in errors, errors)
        ends = [line for line in errors.splitlines() if line.startswith("error: ")]
        check(FULL in ends[0], errors)
        with np.load(file) as weights:
            check(all(np.isfinite(weights[key]).all() for key in weights), file)
    check(names(disk) == [], names(disk))
    failed = len(FAILED.findall(errors))
    return f"no room: {failed} warnings; trained to the end, weights written; status {status}"


def room_for_one(disk: Disk, ranks: int, size: int) -> str:
    """The one that was written stays whole; with more room training is resumed from it."""
    disk.resize(size * 3 // 2)
    status, _, errors = train(disk, ranks)
    check(status == 2 and FAILED.search(errors) is not None, status, errors)
    check(names(disk) == ["step-00000005"], names(disk))
    Checkpoint(disk.kept / "step-00000005").check_all()
    disk.resize(size * 3)
    status, said, errors = train(disk, ranks, "--resume")
    check(status == 0 and "resuming after iteration 5" in said, status, said, errors)
    return f"room for one: step 5 stayed whole; resumed from it with more room; status {status}"


def room_again(disk: Disk, ranks: int, size: int) -> str:
    """A full disk in the middle of training costs some checkpoints and nothing else."""
    disk.resize(size * 4)

    def fill() -> None:
        while not folders(disk.kept):
            time.sleep(0.01)
        with disk.filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        until = time.monotonic() + PATIENCE
        while not FAILED.search(disk.errors.read_text()) and time.monotonic() < until:
            time.sleep(0.01)
        disk.filler.unlink()

    filling = threading.Thread(target=fill)
    filling.start()
    status, _, errors = train(disk, ranks, epochs=12)
    filling.join()
    failed = len(FAILED.findall(errors))
    check(status == 0 and failed > 0, status, failed, errors)
    check(len(names(disk)) == KEEP, names(disk))
    newest = Checkpoint(folders(disk.kept)[-1])
    newest.check_all()
    return f"room again: {failed} warnings, then step {newest.step} was written; status {status}"


def on_a_disk(case: Callable[[Disk, int, int], str], ranks: int, size: int) -> str:
    """A case on a file system of its own."""
    with tempfile.TemporaryDirectory() as name:
        disk = Disk(Path(name))
        try:
            return case(disk, ranks, size)
        finally:
            disk.close()


def size_of(disk: Disk, ranks: int, _: int) -> str:
    """How many bytes a checkpoint has."""
    status, _, errors = train(disk, ranks, epochs=1)
    check(status == 0, status, errors)
    return str(Checkpoint(folders(disk.kept)[-1]).bytes)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="1,2", help="default: 1,2")
    args = parser.parse_args()
    for ranks in map(int, args.ranks.split(",")):
        size = int(on_a_disk(size_of, ranks, 0))
        for case in (no_room, room_for_one, room_again):
            began = time.perf_counter()
            told = on_a_disk(case, ranks, size)
            seconds = time.perf_counter() - began
            print(f"{ranks} rank{'s' * (ranks > 1)}: {told} ({seconds:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
