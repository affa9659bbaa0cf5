"""Trains with parameter groups and averages of weights. Run under legate.

    legate ... groups_worker.py FOLDER WAY...

Of each way of `groups.py` the first rank writes weights, averages and losses to FOLDER/WAY.npz; of
"snapshots STORAGE" the weights after each iteration; of "resumed", what was trained in one piece
and in two; of "restored", what early stopping has brought back.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from groups import BATCH, EPOCHS, WAYS, Arrays, Way, data, network, schedule

from flexlegion import SGD, Adam, BestWeights, Callback, Checkpoints, EarlyStopping, Model
from flexlegion.training.callbacks import Values
from flexlegion.training.fit import Training
from flexlegion.training.program import TRAIN, Batch
from flexlegion.training.trainer import run_series

LOSS = "sparse_categorical_crossentropy"


def compiled(way: Way) -> Model:
    model = network(way.table)
    model.compile(
        way.optimizer,
        LOSS,
        strategy=way.strategy,
        schedule=schedule,
        micro_batches=way.micro_batches,
    )
    return model


def under(prefix: str, arrays: Arrays) -> Arrays:
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def kept(model: Any) -> Arrays:
    arrays = under("weights", model.get_weights())
    return arrays if model.ema is None else arrays | under("averages", model.get_weights(True))


def trained(way: Way, folder: Path) -> Arrays:
    model = compiled(way)
    arrays = under("initial", model.get_weights())
    x, y = data(way.table)
    history = model.fit(x, y, EPOCHS, validation_data=(x, y), shuffle=False, progress=False)
    arrays |= kept(model)
    arrays["losses"] = np.array([epoch["val_loss"] for epoch in history.epochs])
    if model.ema is not None:
        with model.averaged():
            arrays["loss"] = np.array(model.evaluate(x, y)["loss"])
            model.save_weights(folder / "averages.npz")
        arrays |= under("after", model.get_weights())
        arrays["raw loss"] = np.array(model.evaluate(x, y)["loss"])
    model.close()
    return arrays


def snapshots(storage: str) -> Arrays:
    """Weights after each iteration, and their average; of fp16, the first ones overflow."""
    model = network()
    model.compile(Adam(lr=0.02, ema=0.8), LOSS, strategy="model", storage=storage)
    numbers, _ = model.bind(*data(False))
    arrays: Arrays = {}
    for step in range(6):
        rows = np.arange(BATCH) + step
        run_series(model.program, TRAIN, [Batch(numbers, rows)], first_step=step, lr=0.02)
        arrays |= under(f"weights {step}", model.get_weights())
        arrays |= under(f"averages {step}", model.get_weights(averages=True))
    model.close()
    return arrays


def resumed(folder: Path) -> Arrays:
    """In one piece, and in two: the second by another strategy."""
    way = WAYS["both"]
    x, y = data(False)
    arrays: Arrays = {}
    for piece, its, epochs, checkpoint in (
        ("one", way, EPOCHS, None),
        ("first", way, 1, Checkpoints(folder / "kept")),
        ("two", replace(way, strategy="model"), EPOCHS, Checkpoints(folder / "kept", resume=True)),
    ):
        model = compiled(its)
        model.fit(x, y, epochs, progress=False, checkpoint=checkpoint)
        arrays |= under(piece, kept(model))
        model.close()
    return arrays


class Noting(Callback):
    """Keeps weights and averages of each epoch."""

    def __init__(self) -> None:
        self.kept: list[Arrays] = []

    def on_epoch_end(self, training: Training, values: Values) -> None:  # noqa: ARG002
        self.kept.append(kept(training.model))


def restored(folder: Path) -> Arrays:
    """What is restored, saved, and was the best epoch's, of a training that gets worse."""
    model = network()
    model.compile(SGD(lr=3.0, momentum=0.9, ema=0.5), LOSS, strategy="model")
    noted, path = Noting(), folder / "best.npz"
    stop = EarlyStopping("val_loss", patience=2, restore_best=True)
    x, y = data(False)
    callbacks = [noted, stop, BestWeights(path, "val_loss")]
    model.fit(x, y, 30, validation_data=(x, y), progress=False, callbacks=callbacks)
    arrays = under("now", kept(model)) | under("best", noted.kept[stop.best_epoch - 1])
    arrays |= under("last", noted.kept[-1]) | under("saved", dict(np.load(path)))
    model.close()
    return arrays


def main() -> None:
    folder, *ways = sys.argv[1:]
    for name in ways:
        kind, _, storage = name.partition(" ")
        if name == "resumed":
            arrays = resumed(Path(folder))
        elif name == "restored":
            arrays = restored(Path(folder))
        elif kind == "snapshots":
            arrays = snapshots(storage)
        else:
            arrays = trained(WAYS[name], Path(folder))
        np.savez(Path(folder) / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main()
