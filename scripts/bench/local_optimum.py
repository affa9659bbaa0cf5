"""Are the strategies found locally optimal (FlexFlow, section 8.4)? By trying all neighbours.

For each network on 2, 4 and 8 P100s: a search from data parallelism and OptCNN's strategy, then a
descent that tries every configuration (all degrees, all sets of devices) of every single operator,
again and again, until none improves the strategy, or the time is up.

    python scripts/bench/local_optimum.py [nmt rnnlm ...] [--search 10] [--descend 60] [--devices 8]

On 8 devices, that takes up to an hour. With ``--folder``, strategies are kept in files, and a later
run goes on from them instead of searching.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import resolve
from flexlegion.profiling.machines import load_machine
from flexlegion.searches.chain import Chain, prepare_candidates
from flexlegion.searches.descent import best_of, descend
from flexlegion.searches.mcmc import search
from flexlegion.searches.optcnn import optcnn
from flexlegion.searches.options import Budget, SearchOptions
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.strategy import Strategy
from flexlegion.transforms.losses import add_loss
from flexlegion.zoo import ZOO, build

NETWORKS = ("lenet", "alexnet", "rnntc", "rnnlm", "nmt", "resnet101", "inception_v3")


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--search", type=float, default=10.0, help="seconds of search")
    parser.add_argument("--descend", type=float, default=60.0, help="seconds of descent at most")
    parser.add_argument("--devices", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument(
        "--chains", type=int, default=os.cpu_count() or 1, help="of the descent; default: a core"
    )
    parser.add_argument("--folder", type=Path, help="where strategies are kept")
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    args = parser.parse_args()
    for devices in args.devices:
        for name in args.networks:
            model = build(name)
            output = model.graph.operators[-1].output
            graph = add_loss(model.graph, output, ZOO[name].loss)
            problem = Problem(graph, load_machine(f"p100x{devices}"), AnalyticCosts(), output)
            data = resolve("data", graph, problem.devices)
            file = args.folder / f"{name}-{devices}.json" if args.folder else None
            if file is not None and file.exists():
                found = problem.checked(Strategy.load(str(file)))
                prepare_candidates(problem)
            else:
                starts = {"data": data, "optcnn": problem.checked(optcnn(problem))}
                options = SearchOptions(descent=False)
                found = search(problem, starts, Budget(args.search), options=options).strategy
            chains = [Chain(problem, found, seed) for seed in range(args.chains)]
            begin, first = time.monotonic(), chains[0].state.best_time
            with ThreadPoolExecutor(args.chains) as pool:
                optimum = descend(chains, pool, begin + args.descend)
            best, tried = best_of(chains), sum(chain.state.proposals for chain in chains)
            time_ns = best.state.best_time
            gain = first / time_ns - 1
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                best.best.save(str(file))
            print(
                f"{name:13} {devices} devices: "
                f"data {full(problem, data).iteration_time_ns:>12,} ns, "
                f"found {time_ns:>12,} ns; {tried:>9,} neighbours tried in "
                f"{time.monotonic() - begin:5.1f} s (gain {100 * gain:.2f} %): "
                f"{'locally optimal' if optimum else 'time up'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
