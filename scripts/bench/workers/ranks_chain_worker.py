"""A chain of small layers, under legate: what a layer costs where nothing is computed.

Reads ``round N`` lines on its first rank, and answers as JSON: microseconds a layer and pass, of a
chain on one device and of one that alternates between two; and beside them the hop of a bare
program of Legion's, in which two tasks, one on each device, write the same few numbers in turns.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from flexlegion import SGD, Model, ParallelConfig, Strategy
from flexlegion.machine.running import running_machine
from flexlegion.profiling.timing import round_trips
from flexlegion.training.program import TRAIN, Batch
from flexlegion.training.trainer import run_series
from flexlegion.transforms.losses import add_loss
from workers.flexlegion_worker import numbers_of_rounds

LAYERS, UNITS, BATCH_SIZE = 20, 8, 8
ITERATIONS, TRIPS = 60, 64
LOSS = "sparse_categorical_crossentropy"


def chain(devices: list[str]) -> Callable[[], float]:
    """A function that trains a chain whose layers take turns on devices; us a layer and pass."""
    model = Model(batch_size=BATCH_SIZE)
    x = model.input((UNITS,))
    for _ in range(LAYERS):
        x = model.dense(x, UNITS)
    operators = add_loss(model.graph, x, LOSS).operators
    configs = {
        op.name: ParallelConfig((1,) * len(op.dims), (devices[i % len(devices)],))
        for i, op in enumerate(operators)
    }
    model.compile(SGD(0.01), LOSS, strategy=Strategy(configs, "chain"))
    features = np.random.default_rng(0).standard_normal((BATCH_SIZE, UNITS), np.float32)
    data, _ = model.bind(features, np.zeros(BATCH_SIZE, np.int32))
    series = [Batch(data, np.arange(BATCH_SIZE))] * ITERATIONS

    def train() -> float:
        started = time.perf_counter()
        run_series(model.program, TRAIN, series, lr=0.01)
        model.program.wait()
        return (time.perf_counter() - started) / ITERATIONS / LAYERS / 2 * 1e6

    train()  # the trace is recorded
    return train


def bare_hop(first: int, second: int) -> float:
    """us from the end of a task on one device to the beginning of the next on the other."""
    trips = round_trips(first, second, 4 * UNITS * BATCH_SIZE, TRIPS)
    return statistics.median(trips) / 2 / 1e3


def main() -> None:
    """Serve rounds until the input ends."""
    machine = running_machine()
    names = machine.devices.names[:2]
    trains = {"one": chain(names[:1]), "alternating": chain(names)}
    if machine.rank == 0:
        print(json.dumps({"ready": True}), flush=True)
    for _ in numbers_of_rounds():
        answer = {name: train() for name, train in trains.items()}
        answer["bare"] = bare_hop(0, 1)
        if machine.rank == 0:
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
