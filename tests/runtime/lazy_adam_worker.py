"""Trains a network of two look-ups in one table by lazy Adam, in many ways. Run under legate.

    legate ... lazy_adam_worker.py FOLDER WAY...

Of each way of `lazy_adam.py`, the first rank writes weights and moments after each iteration
to FOLDER/WAY.npz. For the way "resumed" that is what two epochs leave, at once and resumed behind
the first with the table split.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from lazy_adam import BATCHES, LOSS, RESUMED, WAYS, Arrays, Way, data, network, split

from flexlegion import Checkpoints, LazyAdam, Model, Strategy
from flexlegion.machine.running import running_machine
from flexlegion.training.checkpoints.shards import states_of
from flexlegion.training.program import TRAIN, Batch
from flexlegion.training.trainer import run_series


def kept(model: Model, optimizer: LazyAdam) -> Arrays:
    """Weights and moments."""
    arrays = dict(model.get_weights())
    for state in states_of(model.program, optimizer):
        arrays[state.key] = model.program.read(state.tensor, state.field, state.state)
    return arrays


def trained(way: Way) -> Arrays:
    """What each iteration leaves, by its number."""
    model = network()
    strategy = way.strategy
    if not isinstance(strategy, str):
        strategy = split(*strategy, running_machine().devices.names)
    model.compile(
        way.optimizer,
        LOSS,
        strategy=strategy,
        micro_batches=way.micro_batches,
        storage=way.storage,
    )
    numbers, _ = model.bind(*data())
    arrays = {f"initial/{key}": value for key, value in kept(model, way.optimizer).items()}
    for step, rows in enumerate(BATCHES):
        batch = Batch(numbers, np.array(rows))
        run_series(model.program, TRAIN, [batch], first_step=step, lr=way.optimizer.lr)
        arrays |= {f"{step}/{key}": value for key, value in kept(model, way.optimizer).items()}
    rank = model.machine.rank
    model.close()
    return arrays if rank == 0 else {}


def fitted(epochs: int, strategy: Strategy | str, checkpoint: Checkpoints | None) -> Arrays:
    """What `fit` leaves."""
    model = network()
    model.compile(LazyAdam(0.01), LOSS, strategy=strategy)
    model.fit(*data(), epochs, progress=False, checkpoint=checkpoint)
    arrays = kept(model, LazyAdam())
    model.close()
    return arrays


def resumed(folder: Path) -> Arrays:
    """Two epochs, at once and one after the other."""
    rows = split(1, 3, running_machine().devices.names)
    at_once = fitted(2, "single", None)
    first = fitted(1, "single", Checkpoints(folder))
    apart = fitted(2, rows, Checkpoints(folder, resume=True))
    kinds = {"at once": at_once, "first": first, "apart": apart}
    return {f"{kind}/{key}": value for kind, its in kinds.items() for key, value in its.items()}


def main() -> None:
    folder, *ways = sys.argv[1:]
    for name in ways:
        if arrays := resumed(Path(folder) / name) if name == RESUMED else trained(WAYS[name]):
            np.savez(Path(folder) / f"{name}.npz", **arrays)


main()
