"""Run under legate: random strategies against the single-device run. Writes failures as JSON."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
from networks import NETWORKS, Network
from training_state import differences, misplaced, train
from zoo_cases import CASES, SMALLEST, ZooCase

from flexlegion import Strategy
from flexlegion._native import rt
from flexlegion.granularity import DEFAULT_GRANULARITY, Granularity
from flexlegion.machine.running import running_machine
from flexlegion.soap import ParallelConfig, random_config

DRAWS = 20  # enough to meet a dimension, unless it cannot be split


def random_strategy(
    network: Network | ZooCase, seed: int, devices: list[str], turn: int
) -> Strategy:
    """Up to 12 tasks an operator: every dimension, uneven extents, devices repeated, permuted.

    In each turn, operators are split in another of their dimensions, or in any.
    """
    graph = network.graph()
    rng = np.random.default_rng(seed)
    max_tasks = int(rng.integers(1, 13))
    configs = {}
    for op in graph.operators:
        dim = turn % (len(op.dims) + 1)
        for _ in range(DRAWS):
            config = configs[op.name] = random_config(op, devices, rng, max_tasks)
            if dim == len(op.dims) or config.degrees[dim] > 1:
                break
    return Strategy(configs, f"seed {seed}")


def on_one_processor(network: Network | ZooCase) -> Strategy:
    """All tasks on the first CPU processor."""
    graph = network.graph()
    return Strategy(
        {op.name: ParallelConfig((1,) * len(op.dims), ("cpu:0",)) for op in graph.operators}
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--zoo", nargs="+", help="of zoo_cases.py, instead of networks.py's")
    parser.add_argument(
        "--reference",
        choices=("single", "cpu"),
        default="single",
        help="what to compare with: one device of the preferred kind, or a CPU processor",
    )
    parser.add_argument("--fail", action="store_true", help="exit with 1 if anything differs")
    args = parser.parse_args()
    machine = running_machine()
    networks: dict[str, Network | ZooCase] = {**NETWORKS}
    if args.zoo:
        networks = {name: CASES[name] for name in args.zoo}
    names = list(networks)
    references = {}
    for name in names:
        one = on_one_processor(networks[name]) if args.reference == "cpu" else "single"
        model, references[name] = train(networks[name], one)
        model.close()
    if machine.ranks == 1:
        rt().check(rt().lib.fl_rt_count_copies(1))
    failures, split_dims, tasks = [], set(), 0
    for seed in range(args.first, args.first + args.count):
        turn, number = divmod(seed, len(names))
        name = names[number]
        # Both ways of cutting weights: as finely as possible, and small ones not at all.
        granularity = Granularity(shard_bytes=1) if turn % 2 else DEFAULT_GRANULARITY
        network = networks[name]
        strategy = random_strategy(network, seed, machine.devices.names, turn // 2)
        model, state = train(network, strategy, granularity)
        bounds = (network.tolerance, SMALLEST) if isinstance(network, ZooCase) else ()
        for failure in [*differences(state, references[name], *bounds), *misplaced(model)]:
            failures.append(f"{name} seed {seed}: {failure}")
        for operator in model.plan.graph.operators:
            config = model.strategy[operator.name]
            tasks += config.tasks
            for dim, degree in zip(operator.dims, config.degrees, strict=True):
                if degree > 1:
                    split_dims.add(f"{operator.kind.type}.{dim.name}")
        model.close()
    result = {
        "processors": len(machine.devices),
        "ranks": machine.ranks,
        "strategies": args.count,
        "tasks": tasks,
        "split_dims": sorted(split_dims),
        "copied_bytes": int(rt().lib.fl_rt_copied_bytes()),
        "failures": failures,
    }
    Path(f"{args.out}.{machine.rank}").write_text(json.dumps(result, indent=2))
    if args.fail and failures:
        print("\n".join(failures), flush=True)
        os._exit(1)  # legate's own shutdown would end with 0


if __name__ == "__main__":
    main()
