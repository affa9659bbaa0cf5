"""The shipped digits: the numbers that UCI's description states, and the scaling."""

import numpy as np
import pytest

from flexlegion.base.errors import UserError
from flexlegion.data import load, load_digits

# From optdigits.names: "Number of instances for the test set", per class 0 to 9.
COUNTS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
# A pixel of ink v in [0, 1] becomes (v - 0.305) / 0.376.
PAPER, INK = (0 - 0.305) / 0.376, (1 - 0.305) / 0.376


def test_shape_range_and_label_counts() -> None:
    digits = load_digits()
    assert digits.x.shape == (1797, 32, 32, 1)
    assert (digits.x.dtype, digits.y.dtype) == (np.float32, np.int32)
    assert digits.x.min() == pytest.approx(PAPER, abs=1e-5)
    assert digits.x.max() == pytest.approx(INK, abs=1e-5)
    assert np.bincount(digits.y).tolist() == COUNTS
    assert digits.n_classes == 10


def test_original_size_is_standardised_and_unscaled() -> None:
    x = load_digits((8, 8)).x
    assert x.mean() == pytest.approx(0, abs=1e-3)
    assert x.std() == pytest.approx(1, abs=1e-3)
    # The upper half of the first image, a zero, in its 16 grey values.
    grey = x[0, :4, :, 0] * 0.376 * 16 + 0.305 * 16
    assert np.rint(grey).astype(int).tolist() == [
        [0, 0, 5, 13, 9, 1, 0, 0],
        [0, 0, 13, 15, 10, 15, 5, 0],
        [0, 3, 15, 2, 0, 11, 8, 0],
        [0, 4, 12, 0, 0, 8, 8, 0],
    ]


def test_scaling_is_bilinear_and_takes_height_first() -> None:
    # Twice as wide: between the centres of pixels a and b lie (3a + b) / 4 and (a + 3b) / 4.
    small, wide = load_digits((8, 8)).x, load_digits((8, 16)).x
    assert wide.shape == (1797, 8, 16, 1)
    left, right = small[:, :, :-1], small[:, :, 1:]
    np.testing.assert_allclose(wide[:, :, 1:-1:2], (3 * left + right) / 4, atol=1e-5)
    np.testing.assert_allclose(wide[:, :, 2:-1:2], (left + 3 * right) / 4, atol=1e-5)


def test_is_deterministic_and_loads_by_name() -> None:
    train, test = load("digits")
    assert test is None
    assert np.array_equal(train.x, load_digits().x)
    assert np.array_equal(train.y, load_digits().y)


@pytest.mark.parametrize("size", [(0, 8), (8, -1), (8,), (8.0, 8)])
def test_refuses_other_sizes(size: tuple[int, int]) -> None:
    with pytest.raises(UserError, match="must be two positive integers, height and width"):
        load_digits(size)
