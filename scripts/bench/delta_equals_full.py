"""Checks on many random proposals that the delta algorithm gives the full one's timelines.

Usage: python scripts/bench/delta_equals_full.py [--proposals 100000] [--seed 0] [--jobs 2]

Every task's times, every memory's peak and every load have to be equal, and at the end those of a
simulation from nothing; exit status 1 if any is not. Networks, machines and proposals are those of
tests/support/deltas.py.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from deltas import OWN, SMALL, Case, Counts, run  # type: ignore[import-not-found]

MACHINES = (
    *("p100x1", "p100x2", "p100x4", "p100x8", "p100x16", "p100x64"),
    *("k80x4", "k80x8", "k80x32", "v100x8", "shared"),
)
DEEP = {"inception_v3", "resnet101"}  # their task graphs are ten times as large
LARGE = {"p100x16", "p100x64", "k80x32"}


def jobs(proposals: int, seed: int) -> Iterator[tuple[Case, int, int]]:
    """(case, proposals, seed): round and round over networks and machines; small ones get more."""
    for round_ in itertools.count():
        for network, machine in itertools.product((*SMALL, *OWN), MACHINES):
            if network in DEEP and machine in LARGE and round_ % 4:
                continue
            count = 200 // (10 if machine in LARGE else 1) // (10 if network in DEEP else 1)
            count = min(proposals, max(10, count))
            if count == 0:
                return
            proposals -= count
            # Times with few ties or many, small shards or large ones; in one of three rounds
            # operators that run again, in one of four sharded weights.
            largest, shard = (20_000, 5)[round_ % 2], (1, 256)[round_ // 2 % 2]
            again, shards = round_ % 3 == 1, round_ % 4 == 2
            case = Case(network, machine, largest, shard, None, 1, again, shards)
            yield case, count, seed + round_


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--proposals", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    total = Counts()
    cases = set()
    begin = time.monotonic()
    with ProcessPoolExecutor(options.jobs) as pool:
        todo = list(jobs(options.proposals, options.seed))
        for (case, _, _), counts in zip(todo, pool.map(run, *zip(*todo, strict=True)), strict=True):
            cases.add((case.network, case.machine))
            total.add(counts)
            for failure in counts.failures:
                print(failure)
    print(
        f"{total.proposals:,} proposals to {len(cases)} problems ({total.tasks:,} tasks), "
        f"{total.accepted:,} accepted; {total.cut_short:,} of {total.limited:,} with a limit cut "
        f"short; {len(total.failures)} differences; {time.monotonic() - begin:.0f} s"
    )
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
