"""Trains a network that keeps all kinds of things from iteration to iteration, with checkpoints.

    legate ... checkpoint_worker.py '{"out": "trained.npz", "strategy": "data", ...}'

The first rank writes weights, optimizer states, and the loss of each iteration to `out`. In
`checkpoint`, {rank} stands for the rank's number, so that ranks do not share the folder.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flexlegion import Adam, Checkpoints, Model
from flexlegion.objective.schedules import cosine, with_warmup
from flexlegion.training.callbacks import Callback
from flexlegion.training.checkpoints.shards import states_of
from flexlegion.training.fit import Training

SAMPLES, BATCH, CLASSES = 1000, 32, 10  # the last batch of an epoch has 8
# With a large epsilon: Adam's first steps would make differences of the last bit large ones.
OPTIMIZER = Adam(lr=0.003, epsilon=1e-2)


def network() -> Model:
    """With running averages and dropout."""
    model = Model(batch_size=BATCH, seed=3)
    x = model.input((8, 8, 3))
    x = model.batch_norm(model.conv2d(x, 8, 3, activation="relu", name="conv"), name="norm")
    x = model.dropout(model.flatten(x), 0.3, name="drop")
    x = model.dense(x, 64, activation="relu", name="hidden")
    model.softmax(model.dense(x, CLASSES, name="output"))
    return model


class Losses(Callback):
    """Notes the loss of each iteration, stops after one, and tells that training has begun.

    A `pause` is the time in seconds that each iteration takes longer.
    """

    def __init__(self, stop: int | None, started: str | None, pause: float) -> None:
        self.stop, self.started, self.pause = stop, started, pause
        self.of: dict[int, float] = {}

    def on_train_begin(self, training: Training) -> None:
        if self.started:
            rank = training.model.machine.rank
            Path(f"{self.started}.{rank}").write_text(f"{os.getpid()}\n")

    def on_batch_end(self, training: Training, values: Mapping[str, float]) -> None:
        time.sleep(self.pause)
        step = training.position.step
        self.of[step] = values["loss"]
        if step == self.stop:
            training.stop()


def shuffled(x: np.ndarray, y: np.ndarray) -> Any:
    """A loader of PyTorch's, which draws its own order, in batches of another size."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return DataLoader(data, batch_size=24, shuffle=True)


def main(
    out: str,
    strategy: str = "data",
    epochs: int = 4,
    checkpoint: str | None = None,
    every: int | str = 10,
    resume: bool = False,
    stop: int | None = None,
    started: str | None = None,
    loader: bool = False,
    pause: float = 0,
    lr: float | None = None,
) -> None:
    """Train."""
    model = network()
    schedule = with_warmup(cosine(epochs * -(-SAMPLES // BATCH)), 10)
    optimizer = OPTIMIZER if lr is None else replace(OPTIMIZER, lr=lr)
    model.compile(optimizer, strategy=strategy, schedule=schedule)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SAMPLES, 8, 8, 3), np.float32)
    y = x.reshape(SAMPLES, -1)[:, :CLASSES].argmax(1).astype(np.int32)
    losses = Losses(stop, started, pause)
    saving = None
    if checkpoint:
        folder = checkpoint.replace("{rank}", str(model.machine.rank))
        saving = Checkpoints(folder, every, resume=resume)
    history = model.fit(
        shuffled(x, y) if loader else x,
        None if loader else y,
        epochs,
        validation_data=(x[:100], y[:100]),
        progress=False,
        callbacks=[losses],
        checkpoint=saving,
    )
    arrays: dict[str, Any] = dict(model.get_weights())
    for one in states_of(model.program, OPTIMIZER):
        arrays[one.key] = model.program.read(one.tensor, one.field, one.state)
    arrays["steps"], arrays["losses"] = list(losses.of), list(losses.of.values())
    arrays["validation"] = [epoch["val_loss"] for epoch in history.epochs]
    arrays["epochs"] = [epoch["loss"] for epoch in history.epochs]
    if model.machine.rank == 0:
        np.savez(out, **arrays)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
