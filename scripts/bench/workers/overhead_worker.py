"""Overhead per point task, under legate: many tiny operators, so the runtime is all there is."""

from __future__ import annotations

import json
import time

import numpy as np

from flexlegion import SGD, Model
from flexlegion.training.program import TRAIN, Batch
from flexlegion.training.trainer import run_series

LAYERS = 50
ITERATIONS = 100
ROUNDS = 20


def main() -> None:
    """Print one JSON object: microseconds a point task, of each round."""
    model = Model(batch_size=2)
    x = model.input((4,))
    for _ in range(LAYERS):
        x = model.relu(x)
    model.dense(x, 2)
    model.compile(SGD(0.01), strategy="data")
    rng = np.random.default_rng(0)
    features = rng.normal(size=(8, 4)).astype(np.float32)
    data, _ = model.bind(features, np.zeros(8, np.int32))
    series = [Batch(data, np.arange(2))] * ITERATIONS
    launches = [launch for launch in model.plan.launches if launch.runs & TRAIN]
    tasks = sum(len(launch.devices) for launch in launches)
    # A loaded tensor takes two tasks: staging and feeding (native/runtime/program.h).
    tasks += sum(len(launch.devices) for launch in launches if launch.pass_ == "load")
    rounds = []
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        run_series(model.program, TRAIN, series, lr=0.01)
        model.program.wait()
        rounds.append((time.perf_counter() - started) / ITERATIONS / tasks * 1e6)
    print(json.dumps({"microseconds": rounds[1:], "tasks": tasks}), flush=True)


if __name__ == "__main__":
    main()
