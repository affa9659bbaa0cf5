"""Run under legate: random strategies against the single-device run. Writes failures as JSON.

Every third strategy trains twice, to the same bits: the second time, tensors that are needed for a
short while take turns in memory. With `--reductions`, all strategies do, and most operators that
reduce something are split in it.

In each turn, the batch goes through in another number of micro-batches, with random buffers. In two
of three strategies, some or most operators are run again for the backward pass.

Where rounding turned a ReLU on or off, the gradients of a network of `--zoo` say nothing: of such a
strategy losses and outputs are compared alone, and another one is drawn for it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
from networks import NETWORKS, Network
from training_state import (
    KEPT,
    State,
    differences,
    differences_of_rounded,
    errors,
    misplaced,
    of_first_forward_pass,
    train,
    turned_units,
)
from zoo_cases import CASES, SMALLEST, ZooCase

from flexlegion import Strategy, set_threads
from flexlegion.base.errors import UserError
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.machine.running import running_machine, traffic
from flexlegion.objective.precision import DEFAULT_STORAGE
from flexlegion.strategy.configuration import (
    SHARDING,
    ParallelConfig,
    cannot_run_again,
    random_config,
)
from flexlegion.transforms.micro_batches import micro_batched

REDUCES = (DimKind.REDUCTION, DimKind.PART)
DRAWS = 20  # enough to meet a dimension, unless it cannot be split
DRAWN_ANEW = 2  # strategies instead of each in which a ReLU turned, at most


def random_strategy(
    graph: Graph, seed: int, devices: list[str], turn: int, reductions: bool
) -> Strategy:
    """Up to 12 tasks an operator: every dimension, uneven extents, devices repeated, permuted.

    In each turn, operators are split in another of their dimensions, or in any; with `reductions`,
    in three of four draws, in one that they reduce.
    """
    rng = np.random.default_rng(seed)
    registers = np.random.default_rng([seed, 2])
    recomputed = np.random.default_rng([seed, 3])
    often = recomputed.choice([0.0, 0.4, 0.9])
    sharded = np.random.default_rng([seed, 4])
    shards_too = sharded.random() < 0.5
    max_tasks = int(rng.integers(2 if reductions else 1, 13))
    configs = {}
    for op in graph.operators:
        dim = turn % (len(op.dims) + 1)
        reduced = [d for d, its in enumerate(op.dims) if its.kind in REDUCES]
        if reductions and reduced and rng.integers(4):
            dim = int(rng.choice(reduced))
        for _ in range(DRAWS):
            config = random_config(op, devices, rng, max_tasks, reductions=True, parts=True)
            again = cannot_run_again(op) is None and bool(recomputed.random() < often)
            buffers = int(registers.integers(1, 5))
            configs[op.name] = replace(config, buffers=buffers, again=again)
            if dim == len(op.dims) or config.degrees[dim] > 1:
                break
        what = SHARDING[sharded.integers(len(SHARDING)) if shards_too else 0]
        configs[op.name] = replace(configs[op.name], sharding=what)
    if len(set(running_machine().devices.nodes)) > 1:
        draws = np.random.default_rng([seed, 1]).random(len(configs)) < 0.7
        for name, hierarchical in zip(configs, draws, strict=True):
            configs[name] = replace(configs[name], hierarchical=bool(hierarchical))
    return Strategy(configs, f"seed {seed}")


def in_rounds(network: Network | ZooCase, turn: int) -> tuple[Network | ZooCase, int]:
    """The network, and in how many micro-batches its batch goes: by turns 1, 2 or more.

    Where it can be done. The batch of a network of the zoo is divided, that of others multiplied.
    """
    rounds = (1, 2, 3, 4)[turn % 4]
    if isinstance(network, Network):
        network = replace(network, batch_size=rounds * network.batch_size)
    try:
        micro_batched(network.graph(), (), rounds)
    except UserError:
        return network, 1
    return network, rounds


def on_one_processor(network: Network | ZooCase) -> Strategy:
    """All tasks on the first CPU processor."""
    graph = network.graph()
    return Strategy(
        {op.name: ParallelConfig((1,) * len(op.dims), ("cpu:0",)) for op in graph.operators}
    )


def parts(op: Operator, config: ParallelConfig) -> int:
    """How many partial values of its outputs an operator computes."""
    degrees = config.degrees[len(op.output.shape) :]
    return math.prod(degrees)


def kind_of(name: str) -> str:
    """What an entry of the state is, for a table of errors."""
    if " loss " in name:
        return "losses"
    if name.endswith(" gradient"):
        return "gradients"
    if " state " in name:
        return "states"
    return "outputs" if name[0].isdigit() else "weights"


def worst_of(found: dict[str, float], worst: dict[str, float]) -> None:
    """Keep the largest errors by kind."""
    for name, error in found.items():
        worst[kind_of(name)] = max(worst.get(kind_of(name), 0.0), error)


def other_bits(state: State, again: State) -> list[str]:
    """What differs between two runs of one strategy."""
    return [
        f"{name}: other bits the second time"
        for name in state
        if state[name].tobytes() != again[name].tobytes()
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--reductions", action="store_true")
    parser.add_argument("--zoo", nargs="+", help="of zoo_cases.py, instead of networks.py's")
    parser.add_argument(
        "--reference",
        choices=("single", "cpu"),
        default="single",
        help="what to compare with: one device of the preferred kind, or a CPU processor",
    )
    parser.add_argument(
        "--threads", type=int, nargs="+", help="of each CPU processor; even small tasks are shared"
    )
    parser.add_argument("--storage", default=DEFAULT_STORAGE, help="of activations")
    parser.add_argument("--fail", action="store_true", help="exit with 1 if anything differs")
    args = parser.parse_args()
    if args.threads:
        set_threads(args.threads, worth_sharing=1)
    machine = running_machine()
    networks: dict[str, Network | ZooCase] = {**NETWORKS}
    if args.zoo:
        networks = {name: CASES[name] for name in args.zoo}
    names = list(networks)
    references: dict[tuple[str, int], State] = {}
    exact: dict[tuple[str, int], State] = {}
    drawn = args.count * (1 + DRAWN_ANEW * bool(args.zoo))
    seeds = range(args.first, args.first + drawn)
    if machine.ranks == 1:
        traffic(count_copies=True)
    failures, split_dims, tasks = [], set(), 0
    reduced: Counter[str] = Counter()  # operators of which a reduction is split, by its name
    sums: Counter[str] = Counter()
    passes: Counter[str] = Counter()
    micro: Counter[int] = Counter()
    worst: dict[str, float] = {}
    compared, turned = 0, 0
    for seed in seeds:
        if compared == args.count:
            break
        turn, number = divmod(seed, len(names))
        name = names[number]
        # Both ways of cutting weights: as finely as possible, and small ones not at all.
        granularity = replace(KEPT, shard_bytes=1) if turn % 2 else KEPT
        network, rounds = in_rounds(networks[name], turn)
        micro[rounds] += 1
        graph, _ = micro_batched(network.graph(), (), rounds)
        strategy = random_strategy(graph, seed, machine.devices.names, turn, args.reductions)
        model, state = train(network, strategy, granularity, args.storage, rounds)
        state_of_all = state
        zoo = isinstance(network, ZooCase)
        bounds = (network.tolerance, SMALLEST) if isinstance(network, ZooCase) else ()
        of = (name, network.batch_size)
        if of not in references:
            one = on_one_processor(network) if args.reference == "cpu" else "single"
            other, references[of] = train(network, one, storage=args.storage)
            other.close()
            if args.storage != DEFAULT_STORAGE:
                other, exact[of] = train(network, one)
                other.close()
        reference = references[of]
        if zoo and turned_units(model.plan.graph, state, reference):
            state, reference = of_first_forward_pass(state), of_first_forward_pass(reference)
            turned += 1
        else:
            compared += 1
        if args.storage == DEFAULT_STORAGE:
            found = differences(state, reference, *bounds)
        else:
            found = differences_of_rounded(model.plan.graph, state, reference, exact[of])
        found += misplaced(model, network.data(model.batch_size))
        worst_of(errors(state, reference, SMALLEST if zoo else 0.0), worst)
        for operator in model.plan.graph.operators:
            config = model.strategy[operator.name]
            tasks += config.tasks
            sums[config.sums] += parts(operator, config) > 1
            for dim, degree in zip(operator.dims, config.degrees, strict=True):
                if degree > 1:
                    split_dims.add(f"{operator.kind.type}.{dim.name}")
                    reduced[operator.kind.type] += dim.kind in REDUCES
        passes.update(launch.pass_ for launch in model.plan.launches)
        model.close()
        if args.reductions or turn % 3 == 0:
            # Tensors that take turns in memory, as soon as they can.
            sharing = replace(granularity, fused_launches=1 + turn % 2, keep_tensors=False)
            model, again = train(network, strategy, sharing, args.storage, rounds)
            model.close()
            found += other_bits(again, state_of_all)
        failures += [f"{name} seed {seed}: {failure}" for failure in found]
    if compared < args.count:
        failures.append(f"in {turned} strategies of {len(seeds)} a ReLU turned")
    result = {
        "processors": len(machine.devices),
        "ranks": machine.ranks,
        "threads": machine.threads,
        "strategies": compared,
        "turned": turned,
        "tasks": tasks,
        "split_dims": sorted(split_dims),
        "reduced": {name: count for name, count in reduced.items() if count},
        "sums": dict(sums),
        "passes": dict(passes),
        "micro_batches": {str(rounds): count for rounds, count in micro.items()},
        "worst": worst,
        "copied_bytes": traffic().copied,
        "failures": failures,
    }
    Path(f"{args.out}.{machine.rank}").write_text(json.dumps(result, indent=2))
    if args.fail and failures:
        print("\n".join(failures), flush=True)
        os._exit(1)  # legate's own shutdown would end with 0


if __name__ == "__main__":
    main()
