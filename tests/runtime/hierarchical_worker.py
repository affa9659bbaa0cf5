"""Run under legate on GPUs of several nodes: what Legion copies between them for weights.

Trains an MLP by data parallelism, its gradients summed inside nodes first, and not. Writes a JSON
object of the two: bytes copied in each iteration between GPUs of different nodes, and of the same.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from flexlegion import Strategy
from flexlegion.bindings.native import rt
from flexlegion.known_strategies import resolve
from flexlegion.machine.running import running_machine
from flexlegion.training.program import TRAIN, Batch
from flexlegion.training.trainer import run_series
from flexlegion.transforms.losses import add_losses
from flexlegion.zoo import build

BATCH, ITERATIONS, LOSS = 16, 3, "sparse_categorical_crossentropy"
SIZES = {"input_shape": (64,), "classes": 32, "hidden": (128, 96)}


def copied(between: bool) -> int:
    """Bytes that were copied between GPUs of different nodes, or of one."""
    devices = running_machine().devices
    gpus = [devices.number(name) for name in devices.preferred]
    ways = [
        (a, b)
        for a in gpus
        for b in gpus
        if a != b and (devices.nodes[a] != devices.nodes[b]) == between
    ]
    return sum(int(rt().lib.fl_rt_copied_bytes(a, b)) for a, b in ways)


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
            rt().check(rt().lib.fl_rt_count_copies(1))
            run_series(model.program, TRAIN, [Batch(data, np.arange(BATCH))], lr=0.01)
            model.program.wait()
            moved.append((copied(True), copied(False)))
        result["hierarchical" if hierarchical else "direct"] = {
            "between": [between for between, _ in moved],
            "inside": [inside for _, inside in moved],
            "weight_bytes": 4 * sum(int(np.prod(weight.shape)) for weight in model.graph.weights),
        }
        model.close()
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
