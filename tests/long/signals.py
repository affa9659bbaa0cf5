"""SIGINT and SIGTERM to every command, in a terminal and without one, from its start to its end.

    python tests/long/signals.py [--commands "search;train;..."] [--moments 20ms,...] [--limit 5]

Each command is first run to its end, to know how long that takes now. Then it is started again and
again, and gets a signal

- 20 and 80 milliseconds after its start, while Python starts and imports;
- at a third, and at nine tenths of its time; if it would run on, also some time after that;
- as soon as a file that it writes appears in its folder;
- twice, a tenth of a second apart.

In a terminal, SIGINT is Ctrl-C typed there, which all processes in the foreground get. Each run has
to end within the limit, with one sentence and status 130 or 143, without a traceback, a process or
a temporary file that is left, and with the file that the sentence names. A command that was done
already may have ended as usual. Prints a table with the longest time of each command and moment,
then what was amiss, and exits with 1 if anything was.

Until the first line of ours runs, Python answers Ctrl-C by a traceback, or the signal alone ends
it: such runs are counted apart. Takes about twenty minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

FLEXLEGION = [sys.executable, "-m", "flexlegion"]
LIMIT = 5.0  # seconds
PATIENCE = 300  # seconds for a run that nobody interrupts
POLL = 0.0005
SENTENCE = re.compile(r"^interrupted\b.*", re.MULTILINE)
AMISS = re.compile(r"^.*(?:Traceback|Exception ignored|error: |0x0000|mpirun).*", re.MULTILINE)
# A line of a traceback; what Python itself runs first has lists of our files in its lines, too.
OUR_FRAME = re.compile(r'^ *File "[^"]*flexlegion/(?:\w+/)*(?!__)\w+\.py"', re.MULTILINE)
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
MARK = "FLEXLEGION_SIGNALS_RUN"  # in the environment of every process of a run

NMT = ("--model", "nmt", "--machine", "k80x64")
SMALL = ("--model", "mlp", "--size", "hidden=64x32", "--machine", "p100x2")
LENET = ("--model", "lenet", "--cpus", "1", "--gpus", "0")
QUICK = ("--budget", "1s", "--max-rounds", "2", "--rounds", "1")
ENDLESS = ("--epochs", "1000000")


@dataclass(frozen=True)
class Command:
    """A command that is interrupted.

    Parameters
    ----------
    arguments
        What it is started with, in a folder of its own.
    short
        Arguments with which it takes as long as it needs to get to work; none: the same.
    after
        Seconds after that in which it works; 0 if it would have ended.
    files
        Patterns of what it leaves if it is interrupted at work.
    writes
        Patterns of what the short run makes while it writes.
    usual
        Status with which it ends if nobody interrupts it.
    """

    arguments: Sequence[str]
    short: Sequence[str] = ()
    after: float = 0.0
    files: Sequence[str] = ()
    writes: Sequence[str] = ()
    usual: int = 0


def training(*more: str) -> Command:
    """`train` with checkpoints."""
    saving = (*LENET, *more, "--checkpoint", "kept", "--every", "20")
    return Command(
        ("train", *saving, *ENDLESS),
        ("train", *saving, "--epochs", "1"),
        2.0,
        ("kept/step-*",),
        ("kept/.writing-*-step-*", "kept/.writing-*"),
    )


COMMANDS = {
    "search": Command(
        ("search", *SMALL, "--budget", "10m", "--no-descent", "--out", "s.json"),
        ("search", *SMALL, "--proposals", "10", "--chains", "1", "--out", "t.json"),
        1.0,
        ("s.json",),
        (".flexlegion-*", "t.json"),
    ),
    "compare": Command(
        ("compare", *SMALL, "--budget", "10m", "--report", "r.html"),
        ("compare", *SMALL, "--proposals", "10", "--chains", "1", "--report", "r.html"),
        1.0,
        ("r.html",),
        (".flexlegion-*", "r.html"),
    ),
    "simulate": Command(
        ("simulate", *NMT, "--strategy", "gnmt", "--size", "steps=400", "--batch-size", "256")
    ),
    "explain": Command(("explain", "gnmt", *NMT)),
    "plan": Command(("plan", *NMT[:2], "--strategy", "data", "--cpus", "8")),
    "report": Command(
        ("report", "gnmt", *NMT, "--out", "r.html"), writes=(".flexlegion-*", "r.html")
    ),
    "machine show": Command(("machine", "show", "p100x64")),
    "machine measure": Command(
        ("machine", "measure", "--cpus", "2", "--gpus", "0", "--out", "m.json"),
        writes=(".flexlegion-*", "m.json"),
    ),
    "checkpoint verify": Command(("checkpoint", "verify", "kept"), usual=1),  # it is damaged
    "accuracy": Command(
        ("accuracy", *LENET, "--strategies", "100", "--rounds", "1000", "--profile-db", "p.db"),
        ("accuracy", *LENET, "--strategies", "2", "--rounds", "1", "--profile-db", "q.db"),
        1.0,
    ),
    "tune": Command(
        ("tune", *LENET, "--budget", "1h", "--profile-db", "p.db", "--out", "s.json"),
        ("tune", *LENET, *QUICK, "--profile-db", "p.db", "--out", "t.json"),
        1.0,
        ("s.json",),
        (".flexlegion-*", "t.json"),
    ),
    "train": training(),
    "train, 2 ranks": training("--ranks", "2"),
}
MOMENTS = ("20ms", "80ms", "early", "late", "working", "writing", "twice")


@dataclass
class Run:
    """A run that was interrupted.

    Parameters
    ----------
    seconds
        From the signal to its end.
    status
        With which it ended.
    said
        In a terminal, all; elsewhere, on standard error.
    problems
        What was amiss.
    bare
        Whether it was ended before a line of ours ran.
    done
        Whether it had ended by itself.
    """

    seconds: float
    status: int
    said: str
    problems: list[str] = field(default_factory=list)
    bare: bool = False
    done: bool = False


class Started:
    """A command in the background, in a session of its own, with a terminal or without."""

    def __init__(self, arguments: Sequence[str], folder: Path, terminal: bool) -> None:
        self._mark = f"{MARK}={uuid.uuid4()}"
        self._text: list[str] = []
        environment = {k: v for k, v in os.environ.items() if k != "LEGATE_CONFIG"}
        environment |= {"TERM": "xterm", "COLUMNS": "200", MARK: self._mark.partition("=")[2]}
        environment["PYTHONPATH"] = str(Path(__file__).parents[2])
        self.terminal = -1
        if terminal:
            self.terminal, theirs = os.openpty()
            reading = self.terminal
        else:
            reading, theirs = os.pipe()

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # which shells ignore in the background
            if terminal:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [*FLEXLEGION, *arguments],
            cwd=folder,
            env=environment,
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs if terminal else subprocess.DEVNULL,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=prepare,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()

    def _read(self, descriptor: int) -> None:
        with suppress(OSError):  # as a terminal ends
            while part := os.read(descriptor, 65536):
                self._text.append(part.decode(errors="replace"))
        os.close(descriptor)

    def strike(self, number: signal.Signals) -> None:
        """Send a signal; Ctrl-C, if there is a terminal."""
        if self.terminal >= 0 and number == signal.SIGINT:
            with suppress(OSError):  # it has ended, and the terminal with it
                os.write(self.terminal, b"\x03")
        else:
            self.process.send_signal(number)

    def left(self) -> list[int]:
        """Its processes."""
        mark, found = self._mark.encode(), []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in entry.read_bytes():
                    found.append(int(entry.parent.name))
        return found

    def kill(self) -> None:
        """Kill what is left."""
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        """What it said to its end, as lines without what moves the cursor."""
        self._reader.join(2)
        return self.heard()

    def heard(self) -> str:
        """The same, until now."""
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", "".join(self._text))
        return text.replace("\r\n", "\n").replace("\r", "\n").replace("^C", "")


def interrupted(
    command: Command,
    folder: Path,
    moment: Moment,
    number: signal.Signals,
    terminal: bool,
    limit: float = LIMIT,
) -> Run:
    """Start a command in a folder, interrupt it, and see what it says and leaves.

    Parameters
    ----------
    command, folder
        What is run where.
    moment
        When it gets the signal.
    number, terminal
        The signal, and how it comes.
    limit
        Seconds for the end.
    """
    writes = moment.name == "writing"
    arguments = command.short if writes and command.short else command.arguments
    started = Started(arguments, folder, terminal)
    try:
        return _struck(command, folder, moment, number, limit, started)
    finally:
        started.kill()


def _struck(
    command: Command,
    folder: Path,
    moment: Moment,
    number: signal.Signals,
    limit: float,
    started: Started,
) -> Run:
    process = started.process
    moment.wait(process)
    began = time.monotonic()
    done = process.poll() is not None
    for turn in range(2 if moment.name == "twice" else 1):
        time.sleep(0.1 * (turn > 0))
        if process.poll() is None:
            started.strike(number)
    problems = []
    try:
        process.wait(4 * limit)
    except subprocess.TimeoutExpired:
        problems.append(f"did not end within {4 * limit:g} s")
    seconds = time.monotonic() - began
    if seconds > limit and not problems:
        problems.append(f"took {seconds:.1f} s to end")
    left, until = started.left(), time.monotonic() + 1
    while left and time.monotonic() < until:  # what was killed takes a moment to be gone
        time.sleep(0.02)
        left = started.left()
    if left:
        names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in left]
        problems.append(f"left running: {', '.join(names)}")
        started.kill()
    run = Run(seconds, process.returncode, started.said(), problems, done=done)
    sentences = SENTENCE.findall(run.said)
    if run.status == command.usual and not sentences:
        run.done = True
        return run
    ours = OUR_FRAME.search(run.said)
    by_python = (
        run.status == -number
        or run.said.rstrip().endswith("KeyboardInterrupt")
        or "Fatal Python error: init_import_site" in run.said
    )
    if by_python and not sentences and ours is None:
        run.bare = True
        return run
    if run.status != STATUS[number]:
        problems.append(f"status {run.status}")
    if len(sentences) != 1:
        problems.append(f"{len(sentences)} sentences")
    problems += [f"said: {line.strip()[:120]}" for line in AMISS.findall(run.said)[:3]]
    problems += [f"left: {path.name}" for path in temporaries(folder)]
    if moment.name == "working":
        problems += [f"no {name}" for name in command.files if not any(folder.glob(name))]
    for path in folder.glob("s.json"):
        try:
            json.loads(path.read_text())
        except ValueError:
            problems.append("half a strategy")
    return run


def temporaries(folder: Path) -> list[Path]:
    """What should have been removed; of checkpoints, the next run removes it."""
    return [path for path in folder.iterdir() if path.name.startswith(".")]


def duration_of(command: Command, folder: Path) -> float:
    """Seconds that it takes to get to work, or to its end."""
    began = time.monotonic()
    started = Started(command.short or command.arguments, folder, terminal=False)
    try:
        status = started.process.wait(PATIENCE)
    finally:
        started.kill()
    if status != command.usual:
        raise RuntimeError(f"status {status}: {started.said()}")
    return time.monotonic() - began


@dataclass(frozen=True)
class Moment:
    """When a command gets a signal.

    Parameters
    ----------
    name
        One of `MOMENTS`.
    command, folder
        What runs where.
    duration
        Seconds after which it is at work.
    """

    name: str
    command: Command
    duration: float
    folder: Path

    @property
    def applies(self) -> bool:
        """Whether the command has such a moment."""
        if self.name == "working":
            return self.command.after > 0
        return self.name != "writing" or bool(self.command.writes)

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for it."""
        at_work = self.duration + self.command.after
        seconds = {
            "20ms": 0.02,
            "80ms": 0.08,
            "early": self.duration / 3,
            "late": 0.9 * self.duration,
            "working": at_work,
            "twice": at_work if self.command.after else self.duration / 2,
        }
        if self.name in seconds:
            time.sleep(seconds[self.name])
            return
        known, until = set(self._written()), time.monotonic() + 3 * self.duration + 5
        while process.poll() is None and time.monotonic() < until:
            if set(self._written()) - known:
                return
            time.sleep(POLL)

    def _written(self) -> list[Path]:
        return [path for pattern in self.command.writes for path in self.folder.glob(pattern)]


def make_input(name: str, folder: Path) -> None:
    """Make what the command is to read."""
    if name != "checkpoint verify":
        return
    checkpoint = folder / "kept" / "step-00000001"
    checkpoint.mkdir(parents=True)
    size = 8 << 30  # of zeros that take no space
    weights = checkpoint / "weights-0-of-1.safetensors"
    weights.touch()
    os.truncate(weights, size)
    files = {weights.name: {"bytes": size, "xxh3_128": "0" * 32}}
    (checkpoint / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))


def main() -> int:
    """Interrupt all, and print the table; 1 if anything was amiss."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--commands", default=";".join(COMMANDS), help="separated by semicolons")
    parser.add_argument("--moments", default=",".join(MOMENTS), help="separated by commas")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for an end; default: 5")
    args = parser.parse_args()
    commands, moments = args.commands.split(";"), args.moments.split(",")
    for names, known in ((commands, COMMANDS), (moments, MOMENTS)):
        if unknown := [name for name in names if name not in known]:
            parser.error(f"{', '.join(unknown)}: not one of {', '.join(known)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left behind
    table = Table("command", "takes", *moments, title="longest seconds to the end, and good runs")
    amiss: list[str] = []
    runs: list[Run] = []
    for name in commands:
        command = COMMANDS[name]
        with tempfile.TemporaryDirectory() as there:
            make_input(name, Path(there))
            duration = duration_of(command, Path(there))
        cells = []
        for moment in moments:
            found = []
            for number, terminal in product(STATUS, (True, False)):
                with tempfile.TemporaryDirectory() as there:
                    folder = Path(there)
                    when = Moment(moment, command, duration, folder)
                    if not when.applies:
                        continue
                    make_input(name, folder)
                    run = interrupted(command, folder, when, number, terminal, args.limit)
                found.append(run)
                where = f"{number.name} {'in a terminal' if terminal else 'elsewhere'}"
                amiss += [f"{name}, {moment}, {where}: {problem}" for problem in run.problems]
            well = sum(not run.problems for run in found)
            slowest = max((run.seconds for run in found), default=0)
            cells.append(f"{slowest:.1f} ({well}/{len(found)})" if found else "")
            runs += found
        table.add_row(name, f"{duration:.1f}", *cells)
        print(name, *cells, sep="  ", file=sys.stderr, flush=True)
    Console(width=110).print(table)
    bare, done = sum(run.bare for run in runs), sum(run.done for run in runs)
    print(
        f"{len(runs)} runs, {bare} of which ended before a line of ours ran, and {done} had ended "
        f"already; {len(amiss)} problems"
    )
    print("\n".join(amiss))
    return 1 if amiss else 0


if __name__ == "__main__":
    sys.exit(main())
