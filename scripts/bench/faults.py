"""Hostile inputs to commands and loaders: each has to end with one sentence, soon, and in bounds.

    python scripts/bench/faults.py [--share 0.01] [--seed 1] [--kept FILE] [--cases 17,40-60]

Each case runs in a process of its own, forked from this one, which has imported flexlegion. Asked
of it: no traceback, no fault of flexlegion's own, no more than 30 s and 2 GB, no control character,
no line of more than 2,000 characters (but what --json prints). Seconds in which a case waited for
a processor, since other programs had them all, do not count. Then files are mutated in one process,
and read. common/faults_files.py has the files, common/faults_arguments.py the commands.

With `--kept`, each outcome is appended to a file, and what is in the file is not run again: so a
run that was ended goes on. `--cases` runs some of the numbered cases alone.
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from common.faults_arguments import hostile_arguments
from common.faults_files import command, mutations, readers, reads

from flexlegion.cli.outcome import EXIT_FAULT
from flexlegion.console.text import table
from flexlegion.profiling.machines import load_machine
from flexlegion.strategy.strategy import Strategy

SECONDS, KILOBYTES, LINE = 30, 2 << 20, 2000
PATIENCE = 1800  # seconds, with what a case waits for a processor
COMMANDS, MUTATED = 2500, 10_000
ARGUMENTS = 20  # for a file of each kind
TAIL = 1500  # characters of what a case said
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
# What takes long to read, or is read by a command that works with it.
OUT_OF_PROCESS = (
    *("model .py", "model .pt2", "profile data base", ".h5", "timeline"),
    *("machine, searched", "machine, shown"),
)
Readers = dict[str, tuple[Path, Callable[[Path], Callable[[], int]]]]


@dataclass(frozen=True)
class Case:
    """What is run, and the kind that it counts to."""

    kind: str
    run: Callable[[], int]
    arguments: str = ""
    json: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a case ended."""

    status: int
    seconds: float
    kilobytes: int
    faults: tuple[str, ...]
    text: str


def outcome_of(case: Case) -> Outcome:
    """Run a case in a process of its own."""
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            _run_here(case, output.fileno())
        status, usage, seconds, late = _ended(child, start)
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
    return Outcome(status, seconds, usage, tuple(faults), text)


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


def _ended(child: int, start: float) -> tuple[int, int, float, bool]:
    """Exit status, largest memory (kB), its own seconds, and whether it had to be killed."""
    late, waited = False, 0.0
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        passed = time.monotonic() - start
        if pid:
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss, passed - waited, late
        waited = max(waited, _without_processor(child))
        if not late and (passed - waited > SECONDS or passed > PATIENCE):
            late = True
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002 if passed < 1 else 0.02)


def _without_processor(pid: int) -> float:
    """Seconds in which a thread of a process could run and had no processor; the largest."""
    waited = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # it has ended
            waited = max(waited, int(thread.read_text().split()[1]))
    return waited * 1e-9


def cases(good: Readers, folder: Path, rng: random.Random) -> Iterator[Case]:
    """Endless, all kinds in turn."""
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
            content = mutations(path, rng)
            yield Case(kind, _prepared(_writer(content), changed, read(changed)))
        for _ in range(ARGUMENTS):
            name, arguments = hostile_arguments(rng)
            yield Case(name, command(*arguments), repr(arguments), "--json" in arguments)


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


def read_in_process(good: Readers, folder: Path, number: int, rng: random.Random) -> Counter[str]:
    """Mutated files read here: what else than `UserError` was raised, by kind."""
    good = {kind: its for kind, its in good.items() if kind not in OUT_OF_PROCESS}
    calls: dict[str, Callable[[Path], object]] = {
        "strategy": Strategy.load,
        "machine": load_machine,
    }
    raised: Counter[str] = Counter()
    for i in range(number):
        kind = list(good)[i % len(good)]
        path, read = good[kind]
        changed = folder / f"x{path.name}"
        changed.write_bytes(mutations(path, rng))
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
    parser.add_argument("--kept", type=Path, help="a file of outcomes, to go on")
    parser.add_argument("--cases", help="numbers and ranges of those to run, and no others")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    kept = None if args.kept is None else args.kept.resolve()
    began = time.monotonic()
    os.environ["FLEXLEGION_PROFILE_DB"] = "/nonexistent/p.sqlite"
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        os.chdir(folder)
        with _quiet():
            good = readers(folder)
            every = list(islice(cases(good, folder, rng), COMMANDS))
            chosen = rng.sample(every, max(1, int(COMMANDS * args.share)))
        wanted = range(len(chosen)) if args.cases is None else _numbers(args.cases)
        rows = run({number: chosen[number] for number in wanted}, kept)
        mutated = int(MUTATED * args.share) if args.cases is None else 0
        with _quiet():
            again = folder / "again"
            again.mkdir()
            raised = read_in_process(good, again, mutated, rng)
    print(
        table(
            ("inputs", "number", "refused", "longest s", "most MB", "faults"), _rows(rows), (0, 5)
        )
    )
    for text, count in raised.items():
        print(f"in process, {count} times: {text}")
    faults = sum(len(outcome.faults) for outcomes in rows.values() for outcome in outcomes)
    print(
        f"{len(wanted)} inputs, {faults} faults; {mutated} files mutated in process, "
        f"{sum(raised.values())} faults; {time.monotonic() - began:.0f} s"
    )
    return int(bool(raised) or faults > 0)


def run(numbered: Mapping[int, Case], kept: Path | None) -> dict[str, list[Outcome]]:
    """Run cases, but those whose outcomes are kept already; outcomes by kind."""
    known = {} if kept is None or not kept.exists() else _read(kept)
    rows: dict[str, list[Outcome]] = {}
    for number, case in numbered.items():
        outcome = known.get(number) or outcome_of(case)
        end = outcome.text[-TAIL:]
        if kept is not None and number not in known:
            with kept.open("a") as file:
                print(json.dumps({"case": number, **asdict(outcome), "text": end}), file=file)
        rows.setdefault(case.kind, []).append(outcome)
        if outcome.faults:
            where = f"{number}: {case.kind} {case.arguments}, {outcome.seconds:.1f} s"
            print(where, outcome.faults, repr(end), sep="\n  ", flush=True)
    return rows


def _read(kept: Path) -> dict[int, Outcome]:
    """Outcomes of an earlier run by number."""
    known = {}
    for line in kept.read_text().splitlines():
        values = json.loads(line)
        values["faults"] = tuple(values["faults"])
        known[values.pop("case")] = Outcome(**values)
    return known


def _numbers(text: str) -> list[int]:
    """``17,40-60``."""
    ranges = (part.partition("-") for part in text.split(","))
    return [n for low, _, high in ranges for n in range(int(low), int(high or low) + 1)]


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
