"""Run under legate on GPUs: what Legion copies between them where reductions are split.

Writes a JSON list with an object a strategy: bytes copied in each iteration, and those of the plan.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from copies import copied_bytes
from networks import BATCH, NETWORKS
from strategies_worker import random_strategy

from flexlegion.machine.running import running_machine
from flexlegion.plan.coherence import moved_bytes
from flexlegion.strategy.strategy import entry_of


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
            strategy = random_strategy(network.graph(), seed, gpus, seed, reductions=True)
            model = network.model()
            model.compile(network.optimizer, network.loss, strategy=strategy)
            data, _ = model.bind(*network.data(BATCH))
            plan = model.plan
            results.append(
                {
                    "network": name,
                    "strategy": {op: entry_of(config) for op, config in strategy.items()},
                    "copied_bytes": copied_bytes(model, data, BATCH, gpus),
                    "planned_bytes": moved_bytes(plan, {gpu: gpu for gpu in gpus}),
                    "partial": sum(plan.value_slots(t) > 1 for t in plan.graph.tensors),
                }
            )
            model.close()
    Path(args.out).write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
