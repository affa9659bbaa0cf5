"""A network that lazy Adam trains, the ways in which it does, and the same training in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion import LazyAdam, Model, ParallelConfig, Strategy
from flexlegion.transforms.losses import add_losses

Arrays = dict[str, npt.NDArray[Any]]
Rows = npt.NDArray[np.int64]

BATCH, STEPS, CLASSES, COLUMNS = 8, 3, 5, 6
ROWS = 40  # of the table; no token names the last ten of them
PADDING = 7  # a token of the second look-up whose row it does not train
LOSS = "sparse_categorical_crossentropy"
TABLE, KERNEL, BIAS = "first.table", "out.kernel", "out.bias"
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


class Reference:
    """The same training in double precision, from the same weights."""

    def __init__(self, way: Way, initial: Arrays) -> None:
        self.optimizer = way.optimizer
        names = (TABLE, KERNEL, BIAS)
        self.weights = {name: initial[f"initial/{name}"].astype(np.float64) for name in names}
        self.m, self.v = ({n: np.zeros_like(w) for n, w in self.weights.items()} for _ in range(2))

    def gradients(self, rows: list[int]) -> tuple[Arrays, Rows]:
        """Of the mean cross-entropy over the labels that count; and the rows that are looked up."""
        (first, second), labels = data()
        first, second, labels = first[rows], second[rows], labels[rows]
        table, kernel = self.weights[TABLE], self.weights[KERNEL]
        x = table[first] + table[second]
        logits = x @ kernel.T + self.weights[BIAS]
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        counts = labels >= 0
        shares[counts, labels[counts]] -= 1
        of_logits = shares * counts[..., None] / counts.sum()
        of_x = of_logits @ kernel
        trained = second != PADDING
        of_table = np.zeros_like(table)
        np.add.at(of_table, first, of_x)
        np.add.at(of_table, second[trained], of_x[trained])
        gradients = {
            TABLE: of_table,
            KERNEL: np.einsum("nto,ntc->oc", of_logits, x),
            BIAS: of_logits.sum((0, 1)),
        }
        return gradients, np.union1d(first, second[trained])

    def step(self, number: int, rows: list[int]) -> Arrays:
        """What an iteration leaves."""
        its = self.optimizer
        gradients, looked_up = self.gradients(rows)
        factor = 1.0
        if its.clip_norm is not None:
            norm = np.sqrt(sum(np.square(g).sum() for g in gradients.values()))
            factor = min(1.0, its.clip_norm / norm)
        for name, gradient in gradients.items():
            at: Rows | slice = looked_up if name == TABLE else slice(None)
            w, m, v = self.weights[name], self.m[name], self.v[name]
            g = factor * gradient[at] + its.weight_decay * w[at]
            m[at] = its.beta1 * m[at] + (1 - its.beta1) * g
            v[at] = its.beta2 * v[at] + (1 - its.beta2) * g**2
            mean = m[at] / (1 - its.beta1 ** (number + 1))
            root = np.sqrt(v[at] / (1 - its.beta2 ** (number + 1)))
            w[at] -= its.lr * mean / (root + its.epsilon)
        names = {name: self.weights[name].copy() for name in gradients}
        names |= {f"{name}/m": m.copy() for name, m in self.m.items()}
        return names | {f"{name}/v": v.copy() for name, v in self.v.items()}


def check(name: str, file: Path, tolerance: float) -> None:
    """Every iteration of a way beside NumPy, by norms; rows that it does not look up keep bits.

    Rows that are looked up move even by gradients of zeros, if they have moved before.
    """
    with np.load(file) as arrays:
        actual = dict(arrays)
    reference = Reference(WAYS[name], actual)
    before: int | str = "initial"
    idle = 0
    for step, rows in enumerate(BATCHES):
        gradients, looked_up = reference.gradients(list(rows))
        moved = reference.m[TABLE].any(-1) | gradients[TABLE].any(-1)
        idle += int((moved & ~gradients[TABLE].any(-1))[looked_up].sum())
        for key, expected in reference.step(step, list(rows)).items():
            error = np.linalg.norm(actual[f"{step}/{key}"] - expected)
            assert error <= tolerance * np.linalg.norm(expected), f"{step} {key}"
            if key.startswith(TABLE):
                same = (actual[f"{before}/{key}"] == actual[f"{step}/{key}"]).all(-1)
                assert same[np.setdiff1d(np.arange(len(expected)), looked_up)].all()
                assert not (same & moved)[looked_up].any()
        before = step
    assert idle > 0
    # The last batch is filled up by tokens that name this row.
    assert 0 not in looked_up
    assert actual[f"{before}/{TABLE}/m"][0].any()
