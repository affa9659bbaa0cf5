"""Dataset: what it accepts, and that take and split keep samples and labels together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexlegion.base.errors import UserError
from flexlegion.data import Dataset


def numbered(n: int) -> Dataset:
    """Sample i holds the number i, and so does its label."""
    return Dataset(np.arange(n, dtype=np.float32)[:, None], np.arange(n, dtype=np.int32), "numbers")


@given(
    n=st.integers(2, 200),
    held_out=st.floats(0.0, 1.0, exclude_min=True, exclude_max=True),
    seed=st.integers(0, 2**32),
)
def test_split_divides_without_loss(n: int, held_out: float, seed: int) -> None:
    train, held = numbered(n).split(held_out, seed)
    assert sorted([*train.y, *held.y]) == list(range(n))
    assert len(held) == min(max(round(n * held_out), 1), n - 1)
    for part in (train, held):
        assert np.array_equal(part.x[:, 0], part.y)
        assert part.n_classes == n


@given(seed=st.integers(0, 2**32))
def test_split_depends_on_the_seed_alone(seed: int) -> None:
    first, again = (numbered(50).split(0.3, seed) for _ in range(2))
    assert np.array_equal(first[0].y, again[0].y)
    assert np.array_equal(first[1].y, again[1].y)
    assert not np.array_equal(first[0].y, numbered(50).split(0.3, seed + 1)[0].y)


def test_take_by_number_and_by_indices() -> None:
    data = numbered(5)
    assert data.take(2).y.tolist() == [0, 1]
    part = data.take(np.array([4, 0]))
    assert (part.x[:, 0].tolist(), part.y.tolist(), part.name) == ([4, 0], [4, 0], "numbers")


def test_a_part_still_knows_all_classes() -> None:
    assert numbered(5).n_classes == 5
    assert numbered(5).take(2).n_classes == 5


def test_real_labels_have_no_classes() -> None:
    data = Dataset(np.zeros((2, 3), np.float32), np.array([0.5, -1], np.float32), "prices")
    assert data.take(1).y.tolist() == [0.5]
    with pytest.raises(UserError, match=r"^prices: the labels are real numbers, and only integer"):
        _ = data.n_classes


def test_labels_a_step_of_a_sequence() -> None:
    data = Dataset(np.zeros((2, 3), np.float32), np.array([[1, 2, 7], [0, 0, 0]], np.int32), "text")
    assert data.n_classes == 8


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 1)), [0, 1], "^d: there are 3 samples but 2 labels, and each"),
        (np.zeros((0, 1)), [], "^d: there are no samples, and at least one"),
        (np.zeros((2, 1)), [0, -1], "^d: the label -1 is negative, and class numbers start at 0"),
        (np.zeros((2, 1)), [0, 3], "^d: the label 3 is out of range, and 3 classes are numbered"),
    ],
)
def test_refuses_what_is_no_data_set(x: np.ndarray, y: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Dataset(x.astype(np.float32), np.array(y, np.int32), "d", classes=3)


def test_refuses_other_types() -> None:
    with pytest.raises(TypeError, match="not float64 and int64"):
        Dataset(np.zeros((1, 1)), np.zeros(1, np.int64), "d")  # type: ignore[arg-type]


@pytest.mark.parametrize("held_out", [0.0, 1.0, -0.5, float("nan")])
def test_refuses_an_empty_part(held_out: float) -> None:
    with pytest.raises(UserError, match="out of range, and must lie strictly between 0 and 1"):
        numbered(10).split(held_out, seed=0)


def test_refuses_to_split_one_sample() -> None:
    with pytest.raises(UserError, match="one sample cannot be split"):
        numbered(1).split(0.5, seed=0)


@pytest.mark.parametrize("samples", [0, 6, np.array([5]), np.array([-1])])
def test_refuses_to_take_what_is_not_there(samples: int | np.ndarray) -> None:
    with pytest.raises(UserError, match=r"cannot take|between 0 and 4"):
        numbered(5).take(samples)
