"""Lazy Adam beside NumPy: of a table, looked-up rows change alone, however it is trained."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from launch import BFLOAT16, run_legate, run_ranks
from lazy_adam import RESUMED, WAYS, Arrays, check

pytestmark = pytest.mark.legion

WORKER = Path(__file__).with_name("lazy_adam_worker.py")
ON_RANKS = ("data", "rows", "random micro")


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
        kinds: dict[str, Arrays] = {kind: {} for kind in ("at once", "first", "apart")}
        for key, value in arrays.items():
            kind, name = key.split("/", 1)
            kinds[kind][name] = value
    for name, expected in kinds["at once"].items():
        difference = np.linalg.norm(kinds["apart"][name] - expected)
        assert difference <= 1e-5 * np.linalg.norm(expected), name
        assert not np.array_equal(kinds["first"][name], expected)
