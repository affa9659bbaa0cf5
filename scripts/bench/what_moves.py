"""How many tasks of an iteration a proposal moves, of those that the delta algorithm plays.

    python scripts/bench/what_moves.py [--only nmt] [--proposals 100]

The delta algorithm keeps what is before the first moment at which a change can show, and plays all
after it. An algorithm that played only what moves, as FlexFlow's Algorithm 2 is meant to, could
leave out those tasks behind that moment whose times stay as they were. For pairs of a network and a
machine of `search_quality.py`, from OptCNN's strategy: random configurations of random operators,
as far as bounds do not reject them (at most a twentieth slower), are simulated and compared with
what was held, task by task.
"""

from __future__ import annotations

import argparse
import random
import statistics
from math import prod
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from search_quality import PAIRS, Pair

from flexlegion.analysis.starts import starts_of
from flexlegion.searches.chain import prepare_candidates
from flexlegion.sim.simulator import SIMULATED, Simulation
from flexlegion.strategy.configuration import ParallelConfig

NAMES = ("alexnet-p100x16", "rnntc-p100x16", "nmt-p100x16", "inception_v3-p100x16")
WHICH = ["pass", "index", "part", "flow", "tensor", "source", "destination", "hop", "device"]
TIMES = ["ready_time", "start_time", "end_time"]


def moved(before: Any, after: Any) -> tuple[int, int, int]:
    """Of the proposal's tasks: all, those from the first that differs on, and those that differ."""
    known = {tuple(row[WHICH]): tuple(row[TIMES]) for row in before}
    same = np.array([known.get(tuple(row[WHICH])) == tuple(row[TIMES]) for row in after])
    first = after["ready_time"][~same].min(initial=np.iinfo(np.int64).max)
    behind = after["ready_time"] >= first
    return len(after), int(behind.sum()), int((~same).sum())


def compared(pair: Pair, proposals: int) -> tuple[float, float, int]:
    """Medians: the share of tasks behind the first that moves; and of these, of those that move."""
    problem = pair.problem()
    prepare_candidates(problem)
    starts, _ = starts_of(["optcnn"], problem, 0, ())
    simulation = Simulation(problem, next(iter(starts.values())))
    before = simulation.tasks()
    chosen = random.Random(0)
    behind: list[float] = []
    moving: list[float] = []
    while len(behind) < proposals:
        operator = chosen.choice(problem.facts.trained)
        degrees = chosen.choice(list(problem.splits(operator)))
        devices = chosen.sample(problem.devices.names, prod(degrees))
        config = ParallelConfig(degrees, tuple(devices))
        limit = int(simulation.iteration_time_ns * 1.05)
        if simulation.propose({operator.name: config}, "delta", limit) != SIMULATED:
            continue
        every, later, different = moved(before, simulation.tasks())
        if different:
            behind.append(later / every)
            moving.append(different / later)
        simulation.reject()
    return statistics.median(behind), statistics.median(moving), len(before)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="pairs with this text in their name")
    parser.add_argument("--proposals", type=int, default=100)
    args = parser.parse_args()
    table = Table("", "tasks", "played by delta", "of these, moved")
    for pair in PAIRS:
        if pair.name in NAMES and args.only in pair.name:
            behind, moving, tasks = compared(pair, args.proposals)
            table.add_row(pair.name, f"{tasks:,}", f"{behind:.0%}", f"{moving:.0%}")
    Console().print(table)


if __name__ == "__main__":
    main()
