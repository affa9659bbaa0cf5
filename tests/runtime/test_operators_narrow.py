"""Every operator with activations stored in two bytes, beside PyTorch in double precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from launch import BFLOAT16, run_legate
from narrow_cases import worst_error
from pytorch_cases import CASES
from pytorch_reference import Arrays, load

pytestmark = pytest.mark.legion
STORAGES = [
    pytest.param("bf16", marks=pytest.mark.skipif(not BFLOAT16, reason="no AVX512-BF16")),
    "fp16",
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Arrays]]:
    """What the worker saved with a storage, by case."""
    folder = tmp_path_factory.mktemp("storage")

    @functools.cache
    def of(storage: str) -> dict[str, Arrays]:
        file = folder / f"{storage}.npz"
        worker = Path(__file__).with_name("pytorch_worker.py")
        run_legate(worker, file, "fp32", "single", "", storage)
        return load(file)

    return of


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("storage", STORAGES)
def test_first_step(storage: str, name: str, saved: Callable[[str], dict[str, Arrays]]) -> None:
    """Each operator's output, and the gradients of all weights, or of the input, together."""
    worst, key = worst_error(name, saved(storage)[name])
    assert worst <= 1, key
