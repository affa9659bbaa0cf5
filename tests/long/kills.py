"""`kill -9` of what writes files, at random moments: the old file or the new one, and no rubbish.

    python tests/long/kills.py [--kills 100] [--kinds search,report,profiles,tune] [--seed 1]

Runs a command again and again, and kills it with all that it started. Every other kill waits until
the file is being written. After each one the file has to be what it was, or complete; data bases
have to hold all that was said to be in them. After the next run that nobody kills, nothing else may
be left in the folder. Prints a line for each kind, and exits with 1 if anything was amiss.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from flexlegion.cost.profile_db import ProfileDB
from flexlegion.cost.records import Sample, TaskKey
from flexlegion.strategy.strategy import Strategy

FLEXLEGION = (sys.executable, "-m", "flexlegion")
SMALL = ("--model", "mlp", "--size", "hidden=64x32", "--machine", "p100x2")
PATIENCE = 600  # seconds for a run that nobody kills
ROWS = 300  # of a run that writes a data base
POLL = 0.0002


class Kind:
    """What is killed: its command, and whether its file is complete."""

    name = "search"
    file = "s.json"

    def command(self, folder: Path, seed: int) -> list[str]:
        """Another seed writes another file."""
        options = ("--proposals", "200", "--chains", "2", "--seed", seed)
        return _flexlegion("search", *SMALL, *options, "--out", folder / self.file)

    def check(self, folder: Path, said: str) -> None:  # noqa: ARG002
        """Raise an exception if the file is not complete."""
        Strategy.load(folder / self.file)


class Report(Kind):
    """A page."""

    name = "report"
    file = "r.html"

    def command(self, folder: Path, seed: int) -> list[str]:
        batch = ("--batch-size", 64 + seed % 512)
        return _flexlegion("report", "data", *SMALL, *batch, "--out", folder / self.file)

    def check(self, folder: Path, said: str) -> None:  # noqa: ARG002
        page = (folder / self.file).read_text()
        if not (page.startswith("<!") and page.rstrip().endswith("</html>")):
            raise ValueError("half a page")


class Profiles(Kind):
    """A data base, of which each row is said when it is in it."""

    name = "profiles"
    file = "p.sqlite"

    def command(self, folder: Path, seed: int) -> list[str]:
        return [sys.executable, __file__, "--write", str(folder / self.file), "--seed", str(seed)]

    def check(self, folder: Path, said: str) -> None:
        with closing(sqlite3.connect(folder / self.file)) as connection:
            if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                raise ValueError("not whole")
        with ProfileDB(folder / self.file) as db:
            there = {key.shapes for key in db.tasks("device", "library")}
        # Of the last line there may be a part.
        if missing := {line for line in said.split("\n")[:-1] if line not in there}:
            raise ValueError(f"{len(missing)} rows are lost")


class Tune(Kind):
    """A strategy that was measured, on this machine's processors."""

    name = "tune"

    def command(self, folder: Path, seed: int) -> list[str]:
        short = ("--budget", "1s", "--rounds", 1, "--max-rounds", 1, "--finalists", 1)
        data = ("--data", "synthetic", "--samples", 256, "--cpus", 2, "--seed", seed)
        profiles = ("--profile-db", folder / Profiles.file)
        return _flexlegion(
            "tune", "--model", "mlp", *short, *data, *profiles, "--out", folder / self.file
        )


KINDS = {kind.name: kind for kind in (Kind(), Report(), Profiles(), Tune())}


@dataclass
class Killing:
    """Runs of a kind in a folder, and what became of them."""

    kind: Kind
    folder: Path
    random: random.Random
    kills: int = 0
    while_written: int = 0
    replaced: int = 0
    problems: list[str] = field(default_factory=list)

    def run(self, wanted: int) -> None:
        """Kill that often."""
        seeds = count(self.random.randrange(1000))
        start = time.monotonic()
        self._complete(next(seeds))
        longest = time.monotonic() - start
        while self.kills < wanted:
            self._kill(next(seeds), longest)
        self._complete(next(seeds))
        allowed = {KINDS[name].file for name in ("search", "report", "profiles")}
        if left := {path.name for path in self.folder.iterdir()} - allowed:
            self.problems.append(f"left: {', '.join(sorted(left))}")

    def _complete(self, seed: int) -> None:
        command = self.kind.command(self.folder, seed)
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
        self._check(done.stdout)

    def _kill(self, seed: int, longest: float) -> None:
        file = self.folder / self.kind.file
        before = file.read_bytes()
        left = set(self.folder.iterdir())
        with tempfile.TemporaryFile() as said:
            command = self.kind.command(self.folder, seed)
            process = subprocess.Popen(command, stdout=said, stderr=subprocess.DEVNULL)
            if self.kills % 2:
                while process.poll() is None and not self._writes(left):
                    time.sleep(POLL)
                written = process.poll() is None
                time.sleep(self.random.uniform(0, 0.002))
            else:
                written = False
                time.sleep(self.random.uniform(0, longest))
            for pid in list(_with_children(process.pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            ended = process.wait(PATIENCE) == -signal.SIGKILL
            said.seek(0)
            self._check(said.read().decode())
        self.kills += ended
        self.while_written += ended and written
        self.replaced += ended and file.read_bytes() != before

    def _writes(self, left: set[Path]) -> bool:
        """Whether there is content in a file that an earlier kill has not left."""
        with suppress(FileNotFoundError):
            return any(path.stat().st_size for path in set(self.folder.iterdir()) - left)
        return False

    def _check(self, said: str) -> None:
        try:
            self.kind.check(self.folder, said)
        except Exception as e:
            self.problems.append(f"{type(e).__name__}: {e}"[:300])


def _flexlegion(*args: object) -> list[str]:
    return [*FLEXLEGION, *map(str, args)]


def _with_children(pid: int) -> Iterator[int]:
    """A process and all that it started, itself first."""
    yield pid
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _with_children(int(child))


def _write(path: Path, seed: int) -> None:
    with ProfileDB(path) as db:
        for row in range(ROWS):
            key = TaskKey("dense", "", f"{seed}x{row}", "forward", "1", "float32")
            db.add_task("device", "library", key, Sample(1, 1, 1))
            print(key.shapes, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="of each kind; default: 100")
    parser.add_argument("--kinds", default=",".join(KINDS), help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write is not None:
        _write(args.write, args.seed)
        return 0
    bad = False
    for name in args.kinds.split(","):
        with tempfile.TemporaryDirectory(prefix="kills-") as folder:
            killing = Killing(KINDS[name], Path(folder), random.Random(args.seed))
            killing.run(args.kills)
        print(
            f"{name}: {killing.kills} kills, {killing.while_written} while a file was written, "
            f"{killing.replaced} left a new one; {len(killing.problems)} problems",
            *killing.problems,
            sep="\n  ",
            flush=True,
        )
        bad |= bool(killing.problems)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
