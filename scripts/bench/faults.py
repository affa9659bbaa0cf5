"""Hostile inputs to commands and loaders: each has to end with one sentence, soon, and in bounds.

    python scripts/bench/faults.py [--share 0.01] [--seed 1]

Each case runs in a process of its own, forked from this one, which has imported flexlegion. Asked
of it: no traceback, no fault of flexlegion's own, no more than 30 s and 2 GB, no control character,
no line of more than 2,000 characters (but what --json prints). Then files are mutated in one
process, and read.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import random
import re
import resource
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from PIL import Image

from flexlegion import UserError
from flexlegion.cli import main as flexlegion
from flexlegion.commands import EXIT_FAULT
from flexlegion.cost.profile_db import ProfileDB, Sample, TaskKey
from flexlegion.data.classification import load_classification
from flexlegion.data.idx import read_idx
from flexlegion.data.images import read_image
from flexlegion.data.loaders import load
from flexlegion.data.text import read_lines
from flexlegion.documents import MAX_BYTES
from flexlegion.machine.files import PLATFORMS, load_machine
from flexlegion.report.text import table
from flexlegion.runtime.checkpoint_files import (
    MANIFEST,
    STATE,
    Checkpoint,
    Sum,
    write_document,
    write_manifest,
    write_tensors,
)
from flexlegion.runtime.checkpoint_weights import read_weights
from flexlegion.strategy import Strategy
from flexlegion.tools.ranks import chosen_ranks

SECONDS, KILOBYTES, LINE = 30, 2 << 20, 2000
COMMANDS, MUTATED = 2500, 10_000
ARGUMENTS = 20  # for a file of each kind
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
TEXTS = ("", "-1", "0", "1e9", "9" * 30, "nan", "\x1b[2J", "\u202e", "a" * 5000, "../..", "{}", "é")
SIZES = ("hidden=1000000000", "hidden=-1", "steps=1000000000", "steps=0", "vocabulary=2147483647")
PIECES = (b"\0", b"\x1b[2J", b"\xff\xff\xff\xff", b"[" * 99, b"1e999", b"-1", b'"a":', b"NaN", b"")

NETWORK = ("--model", "mlp", "--machine", "p100x4")
_QUICK = ("--budget", "1s", "--proposals", "20", "--chains", "1")
_TRAINING = ("--model", "mlp", "--data", "synthetic", "--samples", "64", "--epochs", "1")
# Commands that are complete; each runs with one hostile value more, which is the last to count.
# Training ends at its missing hosts, when its other options have been seen.
COMPLETE: dict[tuple[str, ...], str] = {
    ("simulate", *NETWORK, "--strategy", "data"): "strategy trace algorithm costs",
    ("search", *NETWORK, *_QUICK, "--out", "/dev/null"): "out budget proposals seed chains start",
    ("compare", *NETWORK, *_QUICK): "out budget seed chains report",
    ("explain", "data", *NETWORK): "top costs",
    ("report", "data", *NETWORK, "--out", "/dev/null"): "out svg measured costs",
    ("plan", "--model", "mlp"): "strategy cpus gpus",
    ("train", *_TRAINING, "--hosts", "/nonexistent/hosts"): "data samples lr momentum schedule "
    "warmup decay epochs seed every keep weights log timeline cpus gpus ranks legate held-out",
}
EVERYWHERE = "batch-size size optimizer loss precision model"
MODEL = """import flexlegion as fl


def model():
    net = fl.Model(8)
    net.loss = "mean_squared_error"
    net.dense(net.input((4,)), 2)
    return net
"""
TRAINING_STATE: dict[str, Any] = {
    "training": {"position": {"epoch": 0, "batch": 3, "step": 3}, "history": [{"loss": 1.0}]},
    "seed": 0,
    "batch_size": 4,
    "model": "mlp",
    "optimizer": {"type": "sgd"},
    "learning_rate": 0.1,
    "operators": {},
    "strategy": {},
    "devices": ["cpu:0"],
    "ranks": 1,
    "versions": {},
}


@dataclass(frozen=True)
class Case:
    """What is run, and the kind that it counts to."""

    kind: str
    run: Callable[[], int]
    json: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a case ended."""

    status: int
    seconds: float
    kilobytes: int
    faults: tuple[str, ...]


def outcome_of(case: Case) -> Outcome:
    """Run a case in a process of its own."""
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            _run_here(case, output.fileno())
        status, usage, late = _waited(child, start + SECONDS)
        seconds = time.monotonic() - start
        output.seek(0)
        text = output.read().decode(errors="replace")
    faults = [
        name
        for name, found in (
            ("hang", late),
            ("signal", not late and status < 0),
            ("traceback", "Traceback (most" in text),
            ("own fault", status == EXIT_FAULT),
            ("memory", usage > KILOBYTES),
            ("control character", _CONTROL.search(text) is not None),
            ("long line", any(len(s) > LINE for s in text.splitlines() if not _is_json(case, s))),
        )
        if found
    ]
    return Outcome(status, seconds, usage, tuple(faults))


def _is_json(case: Case, line: str) -> bool:
    return case.json and line[:1] == "{"


def _run_here(case: Case, output: int) -> None:
    status = 99
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        status = case.run()
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _waited(child: int, deadline: float) -> tuple[int, int, bool]:
    """Exit status, largest memory (kB), and whether it had to be killed."""
    late = False
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss, late
        if time.monotonic() > deadline and not late:
            late = True
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)


def reads(read: Callable[[Path], object], path: Path) -> Callable[[], int]:
    """A loader that is to take a file, or to say in a `UserError` why not."""

    def run() -> int:
        try:
            read(path)
        except UserError:
            return 2
        return 0

    return run


def command(*args: object) -> Callable[[], int]:
    """A command."""
    return lambda: flexlegion([str(arg) for arg in args])


def readers(folder: Path) -> dict[str, tuple[Path, Callable[[Path], Callable[[], int]]]]:
    """For each kind of file: a good one, and what reads it."""
    strategy, machine, timeline = folder / "s.json", folder / "m.json", folder / "t.json"
    network = NETWORK
    flexlegion(["search", *network, *_QUICK, "--out", str(strategy)])
    flexlegion(["simulate", *network, "--strategy", "data", "--trace", str(timeline)])
    machine.write_bytes((PLATFORMS / "p100.json").read_bytes())
    x, y = np.zeros((8, 4, 4), np.uint8), np.zeros(8, np.int64)
    np.savez(folder / "d.npz", x=x, y=y)
    np.save(folder / "d.npy", x)
    header = bytes([0, 0, 8, 3, 0, 0, 0, 8, 0, 0, 0, 4, 0, 0, 0, 4])
    (folder / "d-idx3-ubyte").write_bytes(header + x.tobytes())
    (folder / "d-idx3-ubyte.gz").write_bytes(gzip.compress(header + x.tobytes()))
    (folder / "t.txt").write_text("one\ntwo\n")
    (folder / "t.tsv").write_text("good\ta fine day\nbad\ta wet one\n")
    (folder / "t.csv").write_text('label,text\ngood,"a fine day"\nbad,a wet one\n')
    (folder / "hosts").write_text("node1 slots=2\nnode2 slots=2\n")
    weights = {"w[0:4,0:4]": np.ones((4, 4), np.float32), "b": np.ones(4, np.float32)}
    sums = {"w.safetensors": write_tensors(folder / "w.safetensors", weights)}
    sums[STATE] = write_document(folder / STATE, json.dumps(TRAINING_STATE))
    write_manifest(folder, sums)
    Image.fromarray(x[0]).save(folder / "i.png")
    Image.fromarray(x[0]).save(folder / "i.jpg")
    import h5py

    with h5py.File(folder / "d.h5", "w") as file:
        file["x"], file["y"] = x, y
    with ProfileDB(folder / "p.sqlite") as db:
        db.add_task("gpu", "lib", TaskKey("dense", "", "1x1", "forward", "1", "f"), Sample(1, 1, 1))
    (folder / "n.py").write_text(MODEL)
    # No program in fact: exporting one takes too long for this.
    (folder / "e.pt2").write_bytes((folder / "d.npz").read_bytes())

    def image(path: Path) -> object:
        return read_image(path, (8, 8, 3))

    def texts(path: Path) -> object:
        return load_classification(path, 8, 100)

    def hosts(path: Path) -> object:
        return chosen_ranks(None, str(path))

    def checkpoint(path: Path) -> None:
        read_checkpoint(path, folder)

    def samples(path: Path) -> object:
        return load(str(path), str(folder / "d.npy") if path.suffix == ".npy" else None)

    return {
        "strategy": (strategy, lambda p: command("simulate", *network, "--strategy", p)),
        "machine": (
            machine,
            lambda p: command("simulate", "--model", "mlp", "--strategy", "data", "--machine", p),
        ),
        "profile data base": (
            folder / "p.sqlite",
            lambda p: command("simulate", *network, "--strategy", "data", "--profile-db", p),
        ),
        "model .py": (folder / "n.py", lambda p: command("plan", "--model", p)),
        "model .pt2": (folder / "e.pt2", lambda p: command("plan", "--model", p)),
        ".npz": (folder / "d.npz", lambda p: reads(samples, p)),
        ".npy": (folder / "d.npy", lambda p: reads(samples, p)),
        ".h5": (folder / "d.h5", lambda p: reads(samples, p)),
        "IDX": (folder / "d-idx3-ubyte", lambda p: reads(read_idx, p)),
        "IDX .gz": (folder / "d-idx3-ubyte.gz", lambda p: reads(read_idx, p)),
        "text": (folder / "t.txt", lambda p: reads(read_lines, p)),
        ".tsv": (folder / "t.tsv", lambda p: reads(texts, p)),
        ".csv": (folder / "t.csv", lambda p: reads(texts, p)),
        "hosts": (folder / "hosts", lambda p: reads(hosts, p)),
        "timeline": (
            timeline,
            lambda p: command("report", "data", *network, "--out", "/dev/null", "--measured", p),
        ),
        "weights": (folder / "w.safetensors", lambda p: reads(read_weights, p)),
        "checkpoint's weights": (folder / "w.safetensors", lambda p: reads(checkpoint, p)),
        "checkpoint's state": (folder / STATE, lambda p: reads(checkpoint, p)),
        "checkpoint's manifest": (folder / MANIFEST, lambda p: reads(checkpoint, p)),
        ".png": (folder / "i.png", lambda p: reads(image, p)),
        ".jpg": (folder / "i.jpg", lambda p: reads(image, p)),
    }


def read_checkpoint(path: Path, good: Path) -> None:
    """All of a checkpoint that has this file, with the right checksum; other files are good."""
    names = ("w.safetensors", STATE, MANIFEST)
    own = next(name for name in names if path.name.endswith(name))
    with tempfile.TemporaryDirectory(dir=good) as name:
        folder = Path(name)
        for other in names:
            (folder / other).symlink_to(path if other == own else good / other)
        if own != MANIFEST:
            (folder / MANIFEST).unlink()
            content = b""
            if path.is_file() and path.stat().st_size < MAX_BYTES:
                content = path.read_bytes()
            sums = dict(Checkpoint(good).files)
            sums[own] = Sum(len(content), xxhash.xxh3_128(content).hexdigest())
            write_manifest(folder, sums)
        checkpoint = Checkpoint(folder)
        checkpoint.check_all()
        for tensor in checkpoint:
            checkpoint.read(tensor)
        status = flexlegion(["checkpoint", "show", str(folder)])
        if status != 0:
            raise (UserError if status == UserError.status else AssertionError)("not shown")


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut, doubled or put in."""
    result = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(len(result) + 1)
        end = min(len(result), place + rng.choice((1, 4, 64)))
        choice = rng.randrange(4)
        if choice == 0 and place < len(result):
            result[place] ^= 1 << rng.randrange(8)
        elif choice == 1:
            result[place:end] = rng.choice(PIECES)
        elif choice == 2:
            result[place:place] = result[place:end] * rng.choice((1, 50))
        elif rng.random() < 0.2:
            del result[place:]
    return bytes(result)


def cases(folder: Path, rng: random.Random) -> Iterator[Case]:
    """Endless, all kinds in turn."""
    good = readers(folder)
    number = 0
    makers: tuple[Callable[[Path], object], ...] = (
        lambda path: os.mkfifo(path),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.mkdir(),
        _socket,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"[" * 60_000_000),
        lambda path: path.write_bytes(b"[" + b"[]," * 20_000_000 + b"[]]"),
        lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 1 << 36),
        lambda path: path.write_bytes(gzip.compress(bytes(1 << 28), 1)),
    )
    for kind, (path, read) in good.items():
        for make in makers:
            number += 1
            special = folder / f"{number}{path.name}"
            yield Case(kind, _prepared(make, special, read(special)))
    while True:
        for kind, (path, read) in good.items():
            number += 1
            changed = folder / f"{number}{path.name}"
            content = mutated(path.read_bytes(), rng)
            yield Case(kind, _prepared(_writer(content), changed, read(changed)))
        for _ in range(ARGUMENTS):
            yield hostile_argument(rng)


def hostile_argument(rng: random.Random) -> Case:
    """A complete command, and one value that nobody means."""
    base = rng.choice(list(COMPLETE))
    option = rng.choice([*COMPLETE[base].split(), *EVERYWHERE.split()])
    value = rng.choice(SIZES if option == "size" else (*TEXTS, "1000000000", "no\x07"))
    other = ("--model", rng.choice(("mlp", "lenet", "rnnlm")))
    as_json = base[0] != "train" and rng.random() < 0.25
    more = ("--json",) if as_json else ()
    return Case(base[0], command(*base, *other, f"--{option}={value}", *more), as_json)


def _writer(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as its:
        its.bind(str(path))


def _prepared(
    make: Callable[[Path], object], path: Path, run: Callable[[], int]
) -> Callable[[], int]:
    """A case whose file is there only while it runs."""

    def prepared() -> int:
        make(path)
        try:
            return run()
        finally:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()

    return prepared


def read_in_process(folder: Path, number: int, rng: random.Random) -> Counter[str]:
    """Mutated files read here: what else than `UserError` was raised, by kind."""
    good = readers(folder)
    for kind in ("model .py", "model .pt2", "profile data base", ".h5", "timeline"):
        del good[kind]
    calls: dict[str, Callable[[Path], object]] = {
        "strategy": Strategy.load,
        "machine": load_machine,
    }
    raised: Counter[str] = Counter()
    for i in range(number):
        kind = list(good)[i % len(good)]
        path, read = good[kind]
        changed = folder / f"x{path.name}"
        changed.write_bytes(mutated(path.read_bytes(), rng))
        try:
            reads(calls[kind], changed)() if kind in calls else read(changed)()
        except Exception as e:
            raised[f"{kind}: {type(e).__name__}: {str(e)[:60]}"] += 1
    return raised


def main() -> int:
    """Run the cases; status 1 if any did what none may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of all cases; default: 1")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    rows: dict[str, list[Outcome]] = {}
    os.environ["FLEXLEGION_PROFILE_DB"] = "/nonexistent/p.sqlite"
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        os.chdir(folder)
        with _quiet():
            every = list(islice(cases(folder, rng), COMMANDS))
            chosen = rng.sample(every, max(1, int(COMMANDS * args.share)))
        for case in chosen:
            outcome = outcome_of(case)
            rows.setdefault(case.kind, []).append(outcome)
        with _quiet():
            again = folder / "again"
            again.mkdir()
            raised = read_in_process(again, int(MUTATED * args.share), rng)
    print(
        table(
            ("inputs", "number", "refused", "longest s", "most MB", "faults"), _rows(rows), (0, 5)
        )
    )
    for text, count in raised.items():
        print(f"in process, {count} times: {text}")
    return int(bool(raised) or any(o.faults for outcomes in rows.values() for o in outcomes))


def _rows(found: dict[str, list[Outcome]]) -> Iterator[tuple[str, ...]]:
    for kind, outcomes in found.items():
        faults = Counter(fault for outcome in outcomes for fault in outcome.faults)
        yield (
            kind,
            str(len(outcomes)),
            str(sum(outcome.status == 2 for outcome in outcomes)),
            f"{max(outcome.seconds for outcome in outcomes):.1f}",
            f"{max(outcome.kilobytes for outcome in outcomes) / 1024:.0f}",
            ", ".join(f"{count} {fault}" for fault, count in faults.items()) or "none",
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


if __name__ == "__main__":
    sys.exit(main())
