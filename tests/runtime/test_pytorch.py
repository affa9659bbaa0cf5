"""On one device, every operator, loss and optimizer agrees with PyTorch: all tensors and steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from launch import run_legate
from pytorch_cases import CASES
from pytorch_reference import Arrays, Reference, load

pytestmark = pytest.mark.legion

# The reference is in double precision, so the difference is our single precision's alone. A
# rounding is 6e-8 of its value; sums of up to a thousand terms, a few layers and three steps make
# that some 1e-6. Single elements may be much further off where large terms cancel, hence norms. The
# tensors are small: a wrong border, factor or sample shifts their norm by far more than 1e-5.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Arrays]:
    """What the worker saved, by case."""
    file = tmp_path_factory.mktemp("pytorch") / "saved.npz"
    run_legate(Path(__file__).with_name("pytorch_worker.py"), file)
    return load(file)


@pytest.fixture(scope="module")
def references(saved: dict[str, Arrays]) -> Callable[[str], Arrays]:
    """PyTorch's tensors of a case."""
    return functools.cache(lambda name: Reference(CASES[name], saved[name]).run())


def _of_kind(arrays: Arrays, *kinds: str) -> Arrays:
    chosen = {key: value for key, value in arrays.items() if key.split("/")[1] in kinds}
    return {key: value for key, value in chosen.items() if not key.startswith("initial/")}


def _assert_agree(actual: Arrays, expected: Arrays) -> None:
    """The same tensors, and every one of them close."""
    assert actual.keys() == expected.keys()
    for key, reference in expected.items():
        assert actual[key].shape == reference.shape, key
        error = np.linalg.norm(actual[key] - reference)
        assert error <= TOLERANCE * np.linalg.norm(reference), f"{key}: {actual[key]}, {reference}"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "kinds", [["value"], ["gradient"], ["metrics"], ["weight", "state0", "state1"]], ids="_".join
)
def test_agrees(
    name: str, kinds: list[str], saved: dict[str, Arrays], references: Callable[[str], Arrays]
) -> None:
    assert "error" not in saved[name], str(saved[name]["error"])
    expected = references(name)
    _assert_agree(_of_kind(saved[name], *kinds), _of_kind(expected, *kinds))


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("optimizer_")])
def test_updates_agree(
    name: str, saved: dict[str, Arrays], references: Callable[[str], Arrays]
) -> None:
    """Not only the weights, also their change, which is small beside them."""
    changes = [
        {
            key: arrays[f"{CASES[name].steps - 1}/weight/{key}"] - initial
            for key, initial in _weights(saved[name], "initial").items()
        }
        for arrays in (saved[name], references(name))
    ]
    _assert_agree(*changes)


def _weights(arrays: Arrays, when: str) -> Arrays:
    prefix = f"{when}/weight/"
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def _kept(arrays: Arrays, layer: int) -> list[npt.NDArray[np.bool_]]:
    """A dropout layer's mask in each step."""
    return [arrays[f"{step}/value/l{layer}.output"] != 0 for step in range(3)]


@pytest.mark.parametrize(
    ("name", "layer", "rate"),
    [
        ("dropout_rank_2", 0, 0.3),
        ("dropout_rank_2", 2, 0.3),
        ("dropout_rank_4", 1, 0.75),
        ("attention_dropped", 4, 0.4),
    ],
)
def test_dropout_keeps_its_share_anew_in_each_step(
    name: str, layer: int, rate: float, saved: dict[str, Arrays]
) -> None:
    masks = _kept(saved[name], layer)
    for mask in masks:
        deviation = np.sqrt(rate * (1 - rate) / mask.size)
        assert abs(mask.mean() - (1 - rate)) < 4 * deviation
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        _assert_independent(masks[a], masks[b], rate)


def test_dropout_layers_and_samples_drop_different_elements(saved: dict[str, Arrays]) -> None:
    first, second = _kept(saved["dropout_rank_2"], 0)[0], _kept(saved["dropout_rank_2"], 2)[0]
    _assert_independent(first, second, 0.3)
    _assert_independent(first[1:], first[:-1], 0.3)
    _assert_independent(first[:, 1:], first[:, :-1], 0.3)


def _assert_independent(a: npt.NDArray[np.bool_], b: npt.NDArray[np.bool_], rate: float) -> None:
    """Two masks agree as often as independent ones do."""
    agree = (1 - rate) ** 2 + rate**2
    assert abs((a == b).mean() - agree) < 5 * np.sqrt(agree * (1 - agree) / a.size)


def test_padding_has_no_gradient(saved: dict[str, Arrays]) -> None:
    gradient = saved["short_batch_cnn"]["2/gradient/x"]
    assert np.all(gradient[2:] == 0)
    assert np.all(np.abs(gradient[:2]).sum((1, 2, 3)) > 0)
