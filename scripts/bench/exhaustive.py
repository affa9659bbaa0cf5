"""Optima of small executions, and how often the search finds them (FlexFlow, section 8.4).

    python scripts/bench/exhaustive.py [--devices 4] [--seconds 600] [--seeds 20] [--output FILE]

LeNet and RNNLM of two unrolled steps, on P100s with analytic costs: the optimum over all strategies
is proven by branch and bound, then searches with other seeds have to find it. Prints a line for
each, and with --output records all in a JSON file.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from pathlib import Path
from typing import Any

from flexlegion import zoo
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import resolve
from flexlegion.profiling.machines import load_machine
from flexlegion.searches.exhaustive import exhaustive
from flexlegion.searches.mcmc import search
from flexlegion.searches.options import Budget
from flexlegion.sim.problem import Problem
from flexlegion.strategy.configuration import splits
from flexlegion.transforms.losses import add_loss

NETWORKS: dict[str, dict[str, Any]] = {"lenet": {}, "rnnlm": {"steps": 2}}


def problem_of(network: str, devices: int) -> Problem:
    """Training of a network of the zoo."""
    model = zoo.build(network, **NETWORKS[network])
    output = model.graph.operators[-1].output
    graph = add_loss(model.graph, output, zoo.ZOO[network].loss)
    return Problem(graph, load_machine(f"p100x{devices}"), AnalyticCosts(), output)


def strategies(problem: Problem) -> int:
    """How many there are in the search space."""
    devices = len(problem.devices)
    return math.prod(
        sum(math.comb(devices, math.prod(degrees)) for degrees in splits(op, devices))
        for op in problem.facts.trained
    )


def measure(network: str, args: argparse.Namespace) -> dict[str, Any]:
    """The optimum of a network, and what searches find."""
    problem = problem_of(network, args.devices)
    starts = {"data": resolve("data", problem.graph, problem.devices)}
    incumbent = search(problem, starts, Budget(1.0), chains=args.chains)
    result = exhaustive(problem, incumbent.strategy, args.seconds)
    found, slowest = 0, 0.0
    for seed in range(args.seeds):
        fresh = problem_of(network, args.devices)
        begin = time.monotonic()
        of_fresh = {"data": resolve("data", fresh.graph, fresh.devices)}
        its = search(fresh, of_fresh, Budget(args.budget), seed, args.chains)
        slowest = max(slowest, time.monotonic() - begin)
        found += its.iteration_time_ns == result.iteration_time_ns
    return {
        "network": network,
        "devices": args.devices,
        "strategies": float(strategies(problem)),
        "complete": result.complete,
        "optimum_ns": result.iteration_time_ns,
        "incumbent_ns": incumbent.iteration_time_ns,
        "root_bound_ns": result.root_bound_ns,
        "nodes": result.nodes,
        "simulated": result.simulated,
        "seconds": round(result.seconds, 2),
        "searches": args.seeds,
        "searches_that_found_it": found,
        "slowest_search_seconds": round(slowest, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="network")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=600.0, help="for each proof")
    parser.add_argument("--seeds", type=int, default=20, help="how many searches")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds for each search")
    parser.add_argument("--chains", type=int, default=2, help="of each search")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    results = []
    for network in args.networks:
        results.append(measure(network, args))
        print(json.dumps(results[-1]), flush=True)
    if args.output is not None:
        record = {"machine": platform.processor() or platform.machine(), "results": results}
        args.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
