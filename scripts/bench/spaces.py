"""What searches find within DTensor's and JAX's space, beside what they find without one.

    python scripts/bench/spaces.py [--machine p100x4,p100x8] [--budget 10s] [--networks NAME,...]

Simulated iterations, and how much longer one takes than that of the unrestricted search; of what
that found, how many operators `flexlegion export` would replace, and what an iteration takes then.
"""

from __future__ import annotations

import argparse

import flexlegion as fl
from flexlegion.analysis.export import export
from flexlegion.console.text import duration, table
from flexlegion.exporters.targets import TARGETS

NETWORKS = "alexnet,inception_v3,resnet101,transformer,rnnlm,nmt"


def row(network: str, machine: str, budget: str, seed: int) -> list[str]:
    """A line of the table."""
    free = fl.search(network, machine, budget, seed=seed, costs="analytic", progress=False)
    cells = [network, machine, duration(free.iteration_time_ns)]
    for to in TARGETS:
        found = fl.search(
            network, machine, budget, seed=seed, costs="analytic", space=to, progress=False
        )
        done = export(network, machine, free, to, costs="analytic")
        replaced = sum(len(each.operators) for each in done.replaced)
        cells += [
            f"{found.iteration_time_ns / free.iteration_time_ns:.2f}x",
            f"{replaced} of {len(done.strategy)}",
            f"{done.iteration_time_ns / free.iteration_time_ns:.2f}x",
        ]
    return cells


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default=NETWORKS, help=f"default: {NETWORKS}")
    parser.add_argument("--machine", default="p100x4,p100x8", help="default: p100x4,p100x8")
    parser.add_argument("--budget", default="10s", help="of each search; default: 10s")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    args = parser.parse_args()
    columns = ["network", "machine", "found"]
    for to in TARGETS:
        columns += [f"{to}: searched", "replaced", "exported"]
    rows = [
        row(network, machine, args.budget, args.seed)
        for network in args.networks.split(",")
        for machine in args.machine.split(",")
    ]
    print(table(columns, rows, (0, 1)))


if __name__ == "__main__":
    main()
