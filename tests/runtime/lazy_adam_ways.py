"""A network that lazy Adam trains, and the ways in which it does: worker and test share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion import LazyAdam, Model, ParallelConfig, Strategy
from flexlegion.transforms.losses import add_losses

Arrays = dict[str, npt.NDArray[Any]]

BATCH, STEPS, CLASSES, COLUMNS = 8, 3, 5, 6
ROWS = 40  # of the table; no token names the last ten of them
PADDING = 7  # a token of the second look-up whose row it does not train
LOSS = "sparse_categorical_crossentropy"
# Rows of the data, an iteration each. The third and the last have fewer than a batch: what fills
# them up are tokens 0, which no sample of theirs has, and an iteration before had.
BATCHES = (range(8), range(8, 16), range(16, 21), range(8), range(8, 16), range(18, 21))


@dataclass(frozen=True)
class Way:
    """How to train.

    Parameters
    ----------
    strategy
        A known one's name, or into how many parts the table's columns and its rows are cut.
    micro_batches, storage
        As of `Model.compile`.
    """

    strategy: str | tuple[int, int] = "single"
    optimizer: LazyAdam = LazyAdam(0.01)
    micro_batches: int = 1
    storage: str = "fp32"


def network() -> Model:
    """Two look-ups of each step in one table, added; a label for each step."""
    model = Model(BATCH, seed=2)
    first = model.embedding(model.input((STEPS,), "int32"), ROWS, COLUMNS, name="first")
    tokens = model.input((STEPS,), "int32")
    second = model.embedding(tokens, ROWS, COLUMNS, name="second", share=first, padding=PADDING)
    model.dense(model.add([first, second]), CLASSES, name="out")
    return model


def data() -> tuple[list[npt.NDArray[np.int32]], npt.NDArray[np.int32]]:
    """Tokens and labels, of which many do not count: their tokens' rows have gradients of zeros."""
    rng = np.random.default_rng(5)
    first, second = rng.integers(1, ROWS - 10, (2, 21, STEPS)).astype(np.int32)
    first[:16:4, 0] = 0
    second[::3, 1] = PADDING
    labels = rng.integers(CLASSES, size=(21, STEPS))
    labels[rng.random(labels.shape) < 0.4] = -1
    labels[first == 0] = 1
    return [first, second], labels.astype(np.int32)


def split(columns: int, rows: int, devices: Sequence[str]) -> Strategy:
    """The table is cut into columns and rows; all else is on the first device."""
    model = network()
    graph = add_losses(model.graph, model.outputs, LOSS)
    return Strategy(
        {
            op.name: ParallelConfig((1, 1, columns, rows), tuple(devices[: columns * rows]))
            if op.name in ("first", "second")
            else ParallelConfig((1,) * len(op.dims), tuple(devices[:1]))
            for op in graph.operators
        }
    )


RESUMED = "resumed"
WAYS = {
    "one": Way(),
    "hyperparameters": Way(optimizer=LazyAdam(0.02, 0.7, 0.95, 1e-3)),
    "decay": Way(optimizer=LazyAdam(0.01, weight_decay=0.1)),
    "clipped": Way(optimizer=LazyAdam(0.01, clip_norm=0.05)),
    "micro": Way(micro_batches=4),
    "data": Way("data"),
    "model": Way("model"),
    "expert": Way("expert"),
    "columns": Way((2, 1), micro_batches=2),
    "rows": Way((1, 2), LazyAdam(0.01, clip_norm=0.05)),
    "rows of three": Way((1, 3), micro_batches=4),
    "random": Way("random:1", LazyAdam(0.01, clip_norm=0.05)),
    "random micro": Way("random:2", micro_batches=2),
    "bf16": Way(storage="bf16"),
}
