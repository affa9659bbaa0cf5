"""Several ranks do what one process does, whatever is called in which order: to the same bits.

    python tests/long/random_calls.py [--sequences 300] [--machines 2,3,2x2] [--busy 4]
    python tests/long/slow_network.py --delay 1 env UCX_TLS=self,tcp \\
        python tests/long/random_calls.py --machines 2

Draws sequences of public calls on small networks, several of which live at a time: fit (with
validation, with a callback that predicts), evaluate, predict, weights read and written, through
files, checkpoints resumed under another strategy, models compiled anew and closed. Each runs in one
process, and on that many ranks with as many processors in all (2x2: two ranks of two processors).
All that is returned has to be the same on every rank, bit for bit, and again when the ranks do it
once more (`--twice`). Beside one process it has to be the same bit for bit where operators are
divided by samples alone, and within rounding otherwise: their tiles lie elsewhere in memory. Exits
with 1 where it is not, and shows the first calls that differ. About two seconds a sequence.

With `--busy`, that many processes keep the cores busy meanwhile; with `--gpus`, each rank has that
many GPUs in software (tests/soft_gpu), too. In a slow network, the ranks are those of its hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from launch import ranks_command, run_checked, run_legate

WORKER = Path(__file__).parent / "random_calls_worker.py"
A_PROCESS = 50  # sequences: then another one begins
SHOWN = 5  # sequences that differ
ROUNDING = 1e-4  # of a result, in norm


@contextlib.contextmanager
def busy(number: int) -> Iterator[None]:
    """With so many processes that compute all the time."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Told:
    """What a rank told: the calls of each seed, and their results by the numbers of both."""

    calls: dict[str, list[tuple[str, bool]]]
    results: dict[str, np.ndarray]

    @classmethod
    def by(cls, path: Path, ranks: int, devices: int) -> list[Told]:
        """All ranks of a run."""
        all_told = []
        for rank in range(ranks):
            facts = json.loads(Path(f"{path}.{rank}.json").read_text())
            # A wrong start gives independent runs of one rank each.
            assert facts["ranks"] == ranks
            assert len(facts["owners"]) == ranks * devices
            assert set(facts["owners"]) == set(range(ranks))
            with np.load(f"{path}.{rank}.npz") as arrays:
                all_told.append(cls(facts["calls"], dict(arrays)))
        return all_told

    def differing(self, expected: Told, exact: bool) -> dict[str, str]:
        """Of each seed whose calls came to something else, the calls until then.

        `exact`: to the bit, all of them.
        """
        assert self.calls == expected.calls
        assert self.results.keys() == expected.results.keys()
        texts: dict[str, str] = {}
        for key, value in expected.results.items():
            seed, call, _ = key.split()
            calls = self.calls[seed][: int(call) + 1]
            bound = 0.0 if exact or calls[-1][1] else ROUNDING
            off = error(self.results[key], value)
            if not off <= bound:
                names = ", ".join(name for name, _ in calls)
                texts.setdefault(seed, f"seed {seed} is off by {off:.1e} after: {names}")
        return texts


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """The difference in norm, relative to the result; 0 if all bits are the same."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return math.inf
    if found.tobytes() == expected.tobytes():
        return 0.0
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def differences(
    folder: Path, ranks: int, cpus: int, gpus: int, seeds: range, twice: bool
) -> dict[str, str]:
    """Run some sequences both ways; a text for each that differs."""
    arguments = (seeds.start, seeds.stop, ranks * (cpus + gpus))
    hosts = os.environ.get("SLOW_HOSTS")
    all_of = {"cpus": ranks * cpus, "gpus": ranks * gpus}
    run_legate(WORKER, folder / "one", *arguments, **all_of, timeout=1800)
    told = []
    for time_ in range(2 if twice else 1):
        command, environment = ranks_command(
            WORKER,
            folder / f"ranks{time_}",
            *arguments,
            ranks=ranks,
            cpus=cpus,
            gpus=gpus,
            hosts=None if hosts is None else Path(hosts),
        )
        run_checked(command, environment=environment, timeout=3600)
        told += Told.by(folder / f"ranks{time_}", ranks, cpus + gpus)
    found = told[0].differing(*Told.by(folder / "one", 1, ranks * (cpus + gpus)), exact=False)
    for other in told[1:]:
        found |= other.differing(told[0], exact=True)
    return found


def main() -> int:
    """Run all, in processes that share the work."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sequences", type=int, default=300, help="in all; default: 300")
    parser.add_argument("--machines", default="2,3,2x2", help="default: 2,3,2x2")
    parser.add_argument("--seed", type=int, default=0, help="of the first; default: 0")
    parser.add_argument("--gpus", type=int, default=0, help="in software, a rank; default: 0")
    parser.add_argument("--twice", action="store_true", help="all on ranks, to the same bits")
    parser.add_argument("--busy", type=int, default=0, help="processes beside; default: 0")
    args = parser.parse_args()
    machines = args.machines.split(",")
    wrong = False
    with busy(args.busy):
        for machine in machines:
            ranks, _, cpus = machine.partition("x")
            started, found = time.perf_counter(), {}
            seeds = range(args.seed, args.seed - (-args.sequences // len(machines)))
            for first in range(seeds.start, seeds.stop, A_PROCESS):
                some = range(first, min(first + A_PROCESS, seeds.stop))
                with tempfile.TemporaryDirectory() as folder:
                    found |= differences(
                        Path(folder), int(ranks), int(cpus or 1), args.gpus, some, args.twice
                    )
            print(
                f"{machine}: {len(found)} of {len(seeds)} sequences differ "
                f"({time.perf_counter() - started:.0f} s)",
            )
            print(*list(found.values())[:SHOWN], sep="\n", flush=True)
            wrong |= bool(found)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
