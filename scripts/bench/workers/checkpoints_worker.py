"""Worker of checkpoints.py: trains a network, with a checkpoint in every second stretch."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from flexlegion import Adam, Checkpoints, load_model
from flexlegion.data.synthetic import made_up
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.training.callbacks import Callback
from flexlegion.training.fit import Training
from flexlegion.training.position import Position

BATCHES = 4  # of made-up data


class EverySecond(Checkpoints):
    """In the middle of the 2nd, 4th, ... stretch of `length` iterations; counted from `first`."""

    def __init__(self, directory: str, length: int, first: int) -> None:
        super().__init__(directory, every=length)
        self.length, self.first = length, first

    def due(self, position: Position) -> bool:
        return (position.step - self.first) % (2 * self.length) == self.length * 3 // 2


class Clock(Callback):
    """Notes when each iteration was known to be done."""

    def __init__(self) -> None:
        self.times: dict[int, float] = {}

    def on_batch_end(self, training: Training, _values: Mapping[str, float]) -> None:
        self.times[training.position.step] = time.perf_counter()


def main() -> None:
    """Train, and write the stretches' seconds."""
    name, batch, length, pairs, folder, out = sys.argv[1:]
    stretch = int(length)
    model = load_model(name, int(batch))
    network = Network.of(model, TrainingSpec(optimizer=Adam()))
    model.compile(Adam(lr=1e-6), network.training.loss)
    samples = BATCHES * model.batch_size
    x, y = made_up(network.graph, samples, 0)
    first = max(stretch // 2, 10)  # that are not timed: a trace is recorded, memory taken
    # The second stretch of a pair that is not timed writes the first checkpoint.
    iterations = first + 2 * stretch * (int(pairs) + 1) + stretch
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        clock, saving = Clock(), EverySecond(directory, stretch, first)
        epochs = -(-iterations // BATCHES)
        model.fit(x, y, epochs, progress=False, callbacks=[clock], checkpoint=saving)
        size = sum(file.stat().st_size for file in next(Path(directory).iterdir()).iterdir())
    ends = [clock.times[first + i * stretch] for i in range(2 * int(pairs) + 3)]
    seconds = np.diff(ends)[2:].tolist()
    result = {
        "without": seconds[::2],
        "with": seconds[1::2],
        "stalled": saving.stalls,
        "bytes": size,
    }
    if model.machine.rank == 0:
        Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
