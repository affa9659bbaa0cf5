"""Trains DLRM, and notes what Legion copied and what lies in its memories. Run under legate.

Writes FILE.RANK, a JSON list with an object a strategy.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.machine.running import running_machine, traffic
from flexlegion.networks.references import load_model
from flexlegion.objective.optimizers import SGD, Adam, Optimizer
from flexlegion.training.program import TRAIN, Batch
from flexlegion.training.trainer import run_series
from workers.memory_worker import PATIENCE, RESULTS

MODEL = Path(__file__).resolve().parents[2] / "examples" / "dlrm.py"
OPTIMIZERS: dict[str, Optimizer] = {"sgd": SGD(0.1), "momentum": SGD(0.1, 0.9), "adam": Adam(0.01)}


def data_of(rows: int, tables: int, samples: int) -> tuple[list[npt.NDArray[Any]], Any]:
    """Features, categories, of which a few are frequent, and labels; always the same."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((samples, 13), np.float32)
    categories = [(rows * rng.random(samples) ** 4).astype(np.int32) for _ in range(tables)]
    return [features, *categories], (features[:, 0] > 0).astype(np.int32)


def copied(devices: list[int]) -> int:
    """Bytes that Legion copied between memories of devices, since they were counted."""
    between = traffic().between
    return sum(between[ends] for ends in permutations(devices, 2))


def wait_until_free(before: dict[int, int]) -> None:
    """Legion gives memory back some time later. Ranks cannot wait: each look issues a fence."""
    deadline = time.monotonic() + (PATIENCE if running_machine().ranks == 1 else 0)
    while time.monotonic() < deadline:
        in_use = traffic().in_use
        if all(in_use[i] <= size + RESULTS for i, size in before.items()):
            return
        time.sleep(0.01)


def main() -> None:
    """All strategies."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=json.loads, required=True, help="of the model, as JSON")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="sgd")
    parser.add_argument("--strategies", required=True, help="separated by commas")
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--out", required=True, metavar="FILE")
    args = parser.parse_args()
    machine = running_machine()
    used = list(map(machine.devices.number, machine.devices.preferred))
    mine = [i for i in used if machine.owners[i] == machine.rank]
    optimizer = OPTIMIZERS[args.optimizer]
    results = []
    in_use = traffic().in_use
    before = {i: in_use[i] for i in mine}
    for strategy in args.strategies.split(","):
        model = load_model(f"{MODEL}:dlrm", args.batch_size, args.sizes)
        model.compile(optimizer, model.loss, strategy=strategy)
        x, y = data_of(args.sizes["rows"], args.sizes["tables"], 4 * args.batch_size)
        data, _ = model.bind(x, y)
        losses: list[float] = []
        moved = []
        for i in range(args.iterations):
            if machine.ranks == 1:
                traffic(count_copies=True)
            rows = np.arange(args.batch_size) + i % 4 * args.batch_size
            sums: list[Any] = []
            run_series(
                model.program, TRAIN, [Batch(data, rows)], lr=optimizer.lr, report=sums.append
            )
            model.program.wait()
            losses.append(sums[0].losses[0].loss / sums[0].losses[0].labels)
            moved.append(copied(used))
        in_use = traffic().in_use
        results.append(
            {
                "strategy": strategy,
                "losses": losses,
                "copied_bytes": moved,
                "memory_bytes": {machine.devices.names[i]: in_use[i] - before[i] for i in mine},
                "planned_bytes": {
                    name: model.plan.bytes_on(name) for name in machine.devices.names
                },
            }
        )
        model.close()
        wait_until_free(before)
    Path(f"{args.out}.{machine.rank}").write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
