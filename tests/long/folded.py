"""Replicas that are played once: folded timelines beside unfolded ones, of random strategies.

    python tests/long/folded.py [--strategies 10000] [--seed 1]

Of small networks in turn, on machines of two to sixteen nodes, strategies whose groups of devices
do the same with other samples (tests/support/replicated.py), in one piece and in four to nine
micro-batches. Compared are times, loads and memory, task by task. Exits with 1 if any differ. Some
30 strategies a second.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from deltas import APART, difference
from replicated import replicated_problem, replicated_strategy

from flexlegion.sim.simulator import SIMULATED, Simulation

MACHINES = (("p100x8", 2), ("k80x8", 4), ("k80x16", 4), ("v100x16", 8), ("p100x64", 16))
EACH = 20  # strategies of a problem


def main() -> int:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategies", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    counts: Counter[str] = Counter()
    begin = time.monotonic()
    while counts["strategies"] < args.strategies:
        network = str(rng.choice(APART))
        machine, groups = MACHINES[rng.integers(len(MACHINES))]
        rounds = int(rng.choice([1, 4, 5, 9]))
        problem = replicated_problem(network, machine, groups, rounds, rng)
        for _ in range(min(EACH, args.strategies - counts["strategies"])):
            simulation = Simulation(problem, replicated_strategy(problem, groups, rng))
            folded = simulation.timeline()
            assert simulation.propose({}, "unfolded") == SIMULATED
            found = difference(folded, simulation.timeline())
            if found:
                print(f"{network} on {machine}, {rounds} micro-batches: {found}")
            counts.update(
                strategies=1,
                differences=bool(found),
                folded=folded.played < len(folded.tasks),
                tasks=len(folded.tasks),
                played=folded.played,
            )
    print(
        f"{counts['strategies']:,} strategies, {counts['folded']:,} of them folded, "
        f"{counts['tasks']:,} tasks, {counts['played']:,} played; "
        f"{counts['differences']} differences; {time.monotonic() - begin:.0f} s"
    )
    return 1 if counts["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())
