"""Whether searches of small problems end at the optimum, with a proof.

    python scripts/bench/small_problems.py [--graphs 500] [--budget 2s] [--seed 0]

Random graphs of few operators (products, sums, joins, activations, losses among them) on two and on
three devices, reductions allowed. Each is searched as `flexlegion.search` does; told are how many
were proved to be at their optimum, and of the others, how far they were from what an exhaustive
search of a minute proves.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from small_models import small_model  # type: ignore[import-not-found]

import flexlegion as fl
from flexlegion.analysis.setting import network_of
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.profiling.machines import load_machine
from flexlegion.searches.budget import seconds_of
from flexlegion.searches.exhaustive import exhaustive


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--budget", default="2s")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    proved, seconds, off = 0, [], []
    for number in range(args.graphs):
        model, devices = small_model(rng, (4, 16, 64, 256), (8, 64, 512, 2048), 5), 2 + number % 2
        begin = time.monotonic()
        found = fl.search(
            model, f"p100x{devices}", seconds_of(args.budget), loss="mean_squared_error"
        )
        seconds.append(time.monotonic() - begin)
        if found.optimum:
            proved += 1
            continue
        network = network_of(model, loss="mean_squared_error")
        problem = network.problem(load_machine(f"p100x{devices}"), AnalyticCosts())
        best = exhaustive(problem, problem.checked(found.strategy), 60.0)
        off.append(found.iteration_time_ns / best.iteration_time_ns - 1)
        print(f"graph {number}: {off[-1]:+.2%} over the best known, complete {best.complete}")
    print(
        f"{proved} of {args.graphs} proved; a search took {statistics.mean(seconds):.2f} s, "
        f"{max(seconds):.2f} at most; {sum(its > 0 for its in off)} were not at their optimum"
    )
    return 1 if any(its > 0 for its in off) else 0


if __name__ == "__main__":
    sys.exit(main())
