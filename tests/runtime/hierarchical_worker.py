"""Run under legate on GPUs of several nodes: what Legion copies between them for weights.

Trains an MLP by data parallelism, its gradients summed inside nodes first, and not. Writes a JSON
object of the two: bytes copied in each iteration between GPUs of different nodes, and of the same.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np

from flexlegion import Strategy
from flexlegion.known_strategies import resolve
from flexlegion.machine.running import running_machine, traffic
from flexlegion.training.program import TRAIN, Batch
from flexlegion.training.trainer import run_series
from flexlegion.transforms.losses import add_losses
from flexlegion.zoo import build

BATCH, ITERATIONS, LOSS = 16, 3, "sparse_categorical_crossentropy"
SIZES = {"input_shape": (64,), "classes": 32, "hidden": (128, 96)}


def copied() -> tuple[int, int]:
    """Bytes that were copied between GPUs of different nodes, and of one."""
    devices, moved = running_machine().devices, traffic().between
    gpus = [devices.number(name) for name in devices.preferred]
    ways = list(permutations(gpus, 2))
    between = sum(moved[a, b] for a, b in ways if devices.nodes[a] != devices.nodes[b])
    return between, sum(moved[way] for way in ways) - between


def main() -> None:
    (out,) = sys.argv[1:]
    devices = running_machine().devices
    result = {}
    for hierarchical in (False, True):
        model = build("mlp", BATCH, **SIZES)
        graph = add_losses(model.graph, model.outputs, LOSS)
        configs = resolve("data", graph, devices)
        every = {op: replace(its, hierarchical=hierarchical) for op, its in configs.items()}
        model.compile("sgd", LOSS, strategy=Strategy(every))
        rng = np.random.default_rng(0)
        images = rng.normal(size=(BATCH, *SIZES["input_shape"])).astype(np.float32)
        data, _ = model.bind(images, rng.integers(0, SIZES["classes"], BATCH))
        moved = []
        for _ in range(ITERATIONS):
            traffic(count_copies=True)
            run_series(model.program, TRAIN, [Batch(data, np.arange(BATCH))], lr=0.01)
            model.program.wait()
            moved.append(copied())
        result["hierarchical" if hierarchical else "direct"] = {
            "between": [between for between, _ in moved],
            "inside": [inside for _, inside in moved],
            "weight_bytes": 4 * sum(int(np.prod(weight.shape)) for weight in model.graph.weights),
        }
        model.close()
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
