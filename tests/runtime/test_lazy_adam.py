"""Lazy Adam beside NumPy: of a table, looked-up rows change alone, however it is trained."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from launch import BFLOAT16, run_legate, run_ranks
from lazy_adam_ways import BATCHES, PADDING, RESUMED, WAYS, Arrays, Way, data

pytestmark = pytest.mark.legion

WORKER = Path(__file__).with_name("lazy_adam_worker.py")
ON_RANKS = ("data", "rows", "random micro")
TABLE, KERNEL, BIAS = "first.table", "out.kernel", "out.bias"
Rows = npt.NDArray[np.int64]


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


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder of what was trained on so many ranks."""

    @functools.cache
    def folder(ranks: int) -> Path:
        where = tmp_path_factory.mktemp("lazy_adam")
        if ranks == 1:
            ways = [name for name in WAYS if name != "bf16" or BFLOAT16]
            run_legate(WORKER, where, *ways, RESUMED, cpus=3)
        else:
            run_ranks(WORKER, where, *ON_RANKS, ranks=ranks)
        return where

    return folder


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


@pytest.mark.parametrize("name", WAYS)
def test_as_numpy_does(name: str, saved: Callable[[int], Path]) -> None:
    if name == "bf16" and not BFLOAT16:
        pytest.skip("no AVX512-BF16")
    check(name, saved(1) / f"{name}.npz", 5e-2 if name == "bf16" else 1e-4)


@pytest.mark.parametrize("name", ON_RANKS)
def test_two_ranks(name: str, saved: Callable[[int], Path]) -> None:
    check(name, saved(2) / f"{name}.npz", 1e-4)


def test_resumed_in_another_way(saved: Callable[[int], Path]) -> None:
    with np.load(saved(1) / f"{RESUMED}.npz") as arrays:
        kinds = {kind: {} for kind in ("at once", "first", "apart")}
        for key, value in arrays.items():
            kind, name = key.split("/", 1)
            kinds[kind][name] = value
    for name, expected in kinds["at once"].items():
        difference = np.linalg.norm(kinds["apart"][name] - expected)
        assert difference <= 1e-5 * np.linalg.norm(expected), name
        assert not np.array_equal(kinds["first"][name], expected)
