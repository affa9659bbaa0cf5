"""What Legion copies between devices in an iteration of training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from workers.tables_worker import copied

from flexlegion import Model
from flexlegion.machine.running import traffic
from flexlegion.training.program import TRAIN, Batch
from flexlegion.training.trainer import run_series

ITERATIONS = 3


def copied_bytes(model: Model, data: list[int], samples: int, names: Sequence[str]) -> list[int]:
    """Bytes between memories of the named devices in each of some iterations, from the first on.

    Parameters
    ----------
    model
        Compiled.
    data
        What `Model.bind` returned.
    samples
        Of the batch.
    names
        The devices.
    """
    devices = [model.machine.devices.number(name) for name in names]
    moved = []
    for _ in range(ITERATIONS):
        traffic(count_copies=True)
        run_series(model.program, TRAIN, [Batch(data, np.arange(samples))], lr=0.01)
        model.program.wait()
        moved.append(copied(devices))
    return moved
