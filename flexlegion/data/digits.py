"""The shipped data set: handwritten digits, small enough to come with the package.

Origin and licence are in ``digits.LICENSE.md``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from flexlegion.base.errors import UserError
from flexlegion.data.dataset import Dataset

_FILE = Path(__file__).with_name("digits.npz")
_LEVELS = 16  # the highest grey value
# Over all pixels of the 8x8 images in [0, 1]. Fixed, so that a pixel means the same at any size.
_MEAN, _STD = 0.305, 0.376


def load_raw_digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The originals: images uint8 (1797, 8, 8) of grey values 0 to 16, and labels uint8 (1797,)."""
    with np.load(_FILE) as arrays:
        return arrays["images"], arrays["labels"]


def load_digits(size: tuple[int, int] = (32, 32)) -> Dataset:
    """Load the 1,797 handwritten digits of the UCI test set (Alpaydin and Kaynak, 1998).

    Parameters
    ----------
    size : tuple of int
        Height and width in pixels to which the 8x8 originals are scaled, bilinearly.

    Returns
    -------
    Dataset
        `x` float32 (1797, height, width, 1): ink in [0, 1], less the mean 0.305, over the standard
        deviation 0.376 of the originals' pixels, so roughly zero mean and unit variance, between
        -0.811 (paper) and 1.848 (ink). `y` int32 (1797,): the digits, ten classes.

    Raises
    ------
    UserError
        If `size` is not two positive integers.
    """
    if len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size):
        raise UserError(f"digits: the size {size} must be two positive integers, height and width.")
    height, width = size
    images, labels = load_raw_digits()
    ink = images.astype(np.float32) / _LEVELS
    x = np.empty((len(ink), height, width, 1), np.float32)
    for scaled, original in zip(x, ink, strict=True):
        # Pillow takes width before height.
        image = Image.fromarray(original).resize((width, height), Image.Resampling.BILINEAR)
        scaled[..., 0] = np.asarray(image)
    x -= _MEAN
    x /= _STD
    return Dataset(x, labels.astype(np.int32), "digits", classes=10)
