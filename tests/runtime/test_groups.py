"""Parameter groups and averages of weights, beside PyTorch's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from groups import EMA, WAYS, Arrays, reference
from launch import BFLOAT16, run_legate, run_ranks

pytestmark = pytest.mark.legion

WORKER = Path(__file__).with_name("groups_worker.py")
SNAPSHOTS = ("snapshots fp32", "snapshots fp16", *["snapshots bf16"] * BFLOAT16)
ON_RANKS = ("both", "table")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder of what was trained on so many ranks."""

    @functools.cache
    def folder(ranks: int) -> Path:
        where = tmp_path_factory.mktemp("groups")
        if ranks == 1:
            run_legate(WORKER, where, *WAYS, *SNAPSHOTS, "resumed", "restored", cpus=3)
        else:
            run_ranks(WORKER, where, *ON_RANKS, ranks=ranks)
        return where

    return folder


def under(prefix: str, arrays: Arrays) -> Arrays:
    start = f"{prefix}/"
    return {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}


def alike(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.allclose(found[name], array, rtol=2e-5, atol=2e-6), name


@pytest.mark.parametrize(
    ("name", "ranks"), [*((name, 1) for name in WAYS), *((name, 2) for name in ON_RANKS)]
)
def test_as_pytorch_does(name: str, ranks: int, saved: Callable[[int], Path]) -> None:
    way, arrays = WAYS[name], dict(np.load(saved(ranks) / f"{name}.npz"))
    weights, averages, losses = reference(way, under("initial", arrays))
    alike(under("weights", arrays), weights)
    if way.optimizer.ema is None:
        assert not under("averages", arrays)
        return
    alike(under("averages", arrays), averages)
    # Averages are what is validated, and what there is to evaluate meanwhile; not afterwards.
    assert np.allclose(arrays["losses"], losses, rtol=1e-5)
    assert arrays["loss"] == pytest.approx(losses[-1], rel=1e-5)
    assert arrays["raw loss"] != pytest.approx(losses[-1], rel=1e-3)
    for key, array in under("weights", arrays).items():
        assert np.array_equal(array, arrays[f"after/{key}"])


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_average_of_each_iteration(name: str, saved: Callable[[int], Path]) -> None:
    """It begins as the weights, also where scaled gradients overflow at first."""
    arrays = dict(np.load(saved(1) / f"{name}.npz"))
    average = under("weights 0", arrays)
    for step in range(6):
        weights = under(f"weights {step}", arrays)
        if step:
            average = {key: EMA * a + (1 - EMA) * weights[key] for key, a in average.items()}
        alike(under(f"averages {step}", arrays), average)
    assert not np.allclose(average["out.kernel"], weights["out.kernel"], rtol=1e-3)


def test_saved_averages(saved: Callable[[int], Path]) -> None:
    """Of the last way that has some: within `averaged`, that is what `save_weights` writes."""
    last = [name for name, way in WAYS.items() if way.optimizer.ema is not None][-1]
    arrays = dict(np.load(saved(1) / f"{last}.npz"))
    alike(dict(np.load(saved(1) / "averages.npz")), under("averages", arrays))


def test_resumed_in_another_way(saved: Callable[[int], Path]) -> None:
    arrays = dict(np.load(saved(1) / "resumed.npz"))
    one, first, two = (under(piece, arrays) for piece in ("one", "first", "two"))
    alike(two, one)
    for key, array in one.items():
        assert not np.array_equal(array, first[key])


def test_early_stopping_restores_both(saved: Callable[[int], Path]) -> None:
    """Weights and averages, as they were; the file has the averages, which were the best."""
    arrays = dict(np.load(saved(1) / "restored.npz"))
    now, best, last = (under(which, arrays) for which in ("now", "best", "last"))
    for key, array in best.items():
        assert np.array_equal(now[key], array), key
        assert not np.array_equal(last[key], array), key
    for key, array in under("averages", best).items():
        assert np.array_equal(arrays[f"saved/{key}"], array)
