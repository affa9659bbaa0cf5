"""Run under legate on GPUs: what Legion copies between them where reductions are split.

Writes a JSON list with an object a strategy: bytes copied in each iteration, and those of the plan.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from networks import BATCH, NETWORKS
from strategies_worker import random_strategy
from workers.tables_worker import copied

from flexlegion._native import rt
from flexlegion.coherence import moved_bytes
from flexlegion.machine.running import running_machine
from flexlegion.runtime.program import TRAIN, Batch
from flexlegion.runtime.trainer import run_series

ITERATIONS = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", nargs="+", required=True)
    parser.add_argument("--seeds", type=int, required=True, help="strategies of each network")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    devices = running_machine().devices
    gpus = devices.preferred
    results = []
    for name in args.networks:
        network = NETWORKS[name]
        for seed in range(args.seeds):
            strategy = random_strategy(network, seed, gpus, seed, reductions=True)
            model = network.model()
            model.compile(network.optimizer, network.loss, strategy=strategy)
            data, _ = model.bind(*network.data(BATCH))
            moved = []
            for _ in range(ITERATIONS):
                rt().check(rt().lib.fl_rt_count_copies(1))
                run_series(model.program, TRAIN, [Batch(data, np.arange(BATCH))], lr=0.01)
                model.program.wait()
                moved.append(copied(list(map(devices.number, gpus))))
            plan = model.plan
            results.append(
                {
                    "network": name,
                    "strategy": {
                        op: (strategy[op].degrees, strategy[op].devices, strategy[op].sums)
                        for op in strategy
                    },
                    "copied_bytes": moved,
                    "planned_bytes": moved_bytes(plan, {gpu: gpu for gpu in gpus}),
                    "partial": sum(plan.value_slots(t) > 1 for t in plan.graph.tensors),
                }
            )
            model.close()
    Path(args.out).write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
