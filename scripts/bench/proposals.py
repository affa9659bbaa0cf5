"""How many proposals a second a chain makes, and what it finds: geometric means over many seeds.

    python scripts/bench/proposals.py [--networks rnnlm,nmt] [--seeds 12] [--seconds 1.5]
        [--micro-batches 8]

Each seed has a chain from data parallelism for so much processor time: half of it changes operators
of a kind together, the rest single ones. Chains of different seeds differ in their speed by a
factor of three and more, as they come to strategies of more or of fewer tasks, so that a few seeds
tell nothing. For another checkout, run the same file by the Python of that one.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence

from simulator import problem_of

from flexlegion.console.text import table
from flexlegion.known_strategies import resolve
from flexlegion.searches.chain import Chain, ChainOptions, ChainState
from flexlegion.searches.start import tie_groups

MACHINES = {
    "nmt": "p100x16",
    "rnnlm": "p100x16",
    "inception_v3": "p100x16",
    "alexnet": "p100x16",
    "transformer": "p100x8",
}
TEMPERATURE = 0.005
SLICE = 16  # proposals between two looks at the clock


def run(chain: Chain, seconds: float, tied: bool, heat: float) -> None:
    """Go on for so much processor time, cooling down."""
    begin = time.process_time()
    while (used := (time.process_time() - begin) / seconds) < 1:
        cool = max(1e-3, 1 - used)
        chain.run(SLICE, 0, ChainOptions(temperature=TEMPERATURE * heat * cool, tied=tied))


def mean(values: Sequence[float]) -> str:
    """The geometric mean, and its standard error."""
    logarithms = [math.log(value) for value in values]
    error = statistics.stdev(logarithms) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{math.exp(statistics.mean(logarithms)):,.1f} ± {error:.0%}"


def row(network: str, seeds: int, seconds: float, micro_batches: int) -> tuple[str, ...]:
    """A line of the table."""
    problem = problem_of(network, {}, MACHINES[network], micro_batches)
    groups = tie_groups(problem)
    start = resolve("data", problem.graph, problem.devices)
    states, rates = list[ChainState](), list[float]()
    for seed in range(seeds):
        chain = Chain(problem, start, seed, groups)
        begin = time.process_time()
        run(chain, seconds / 2, tied=True, heat=1.0)
        run(chain, seconds / 2, tied=False, heat=0.1)
        states.append(chain.state)
        rates.append(chain.state.proposals / (time.process_time() - begin))
    bounded = [(state.overloaded + state.overlong) / state.proposals for state in states]
    return (
        f"{network}, {MACHINES[network]}",
        mean(rates),
        mean([state.best_time / 1e6 for state in states]),
        mean([state.tasks_played / state.proposals for state in states]),
        f"{statistics.mean(bounded):.0%}",
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default=",".join(MACHINES), help="separated by commas")
    parser.add_argument("--seeds", type=int, default=12, help="default: 12")
    parser.add_argument("--micro-batches", type=int, default=1, help="default: 1")
    parser.add_argument("--seconds", type=float, default=1.5, help="for each seed; default: 1.5")
    args = parser.parse_args()
    names = args.networks.split(",")
    heads = ("network", "proposals a second", "found, ms", "tasks a proposal", "ended by bounds")
    rows = [row(name, args.seeds, args.seconds, args.micro_batches) for name in names]
    print(table(heads, rows, (0,)))


if __name__ == "__main__":
    main()
