"""Folders of images, one folder a class, read while training runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from flexlegion.data.dataset import Dataset, Splits, split_rows
from flexlegion.data.digits import load_raw_digits
from flexlegion.errors import UserError
from flexlegion.sources import BatchSource
from flexlegion.tensor import Shape

EXTENSIONS = (".jpg", ".jpeg", ".png")
# Sets that take no more bytes are read once, and kept.
IN_MEMORY = 2**30
# What a random crop takes of the largest possible one's sides: 224 of 256 pixels.
CROP = 224 / 256

_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True, eq=False)
class ImageFolder(BatchSource):
    """Image files with their classes.

    An image is cut to the shape of the network's input and scaled to its size: its largest centred
    part, or when augmented a random part of 7/8 of that side, mirrored or not. Values 0 to 255
    become -1 to 1.

    Attributes
    ----------
    files : tuple of Path
        The images.
    labels : int32 array, shape (n,)
        Numbers of their classes.
    class_names : tuple of str
        The classes, by number.
    shape : tuple of int
        Height, width and channels to give them: 1 channel for grey, 3 for red, green and blue.
    name : str
        What messages call the folder.
    augment : bool
        Whether to crop and mirror at random.
    seed : int
        Decides this, with the sample's number and the epoch.
    """

    files: tuple[Path, ...]
    labels: npt.NDArray[np.int32]
    class_names: tuple[str, ...]
    shape: Shape
    name: str
    augment: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or self.shape[2] not in _MODES or min(self.shape) < 1:
            raise UserError(
                f"{self.name}: images become arrays (height, width, channel) of 1 or 3 channels, "
                f"but the network's input has the shape {list(self.shape)}"
            )

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.files)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """An image, and its label."""
        return (self.shape, ())

    def read(self, row: int, epoch: int, out: Sequence[npt.NDArray[Any]]) -> None:
        """Decode an image; see `BatchSource`."""
        image, label = out
        rng = np.random.default_rng([self.seed, epoch, row]) if self.augment else None
        image[...] = read_image(self.files[row], self.shape, rng)
        label[...] = self.labels[row]

    def split(self, held_out: float, seed: int) -> tuple[Self, Self]:
        """Divide at random into a part to train on and one to test with; see `Dataset.split`."""
        rest, held = split_rows(self.name, len(self), held_out, seed)
        return self._part(rest), dataclasses.replace(self._part(held), augment=False)

    def in_memory(self) -> Dataset | Self:
        """All images as arrays, if these are small, and every epoch has the same."""
        if self.augment or len(self) * int(np.prod(self.shape)) * 4 > IN_MEMORY:
            return self
        x = np.empty((len(self), *self.shape), np.float32)
        y = np.empty(len(self), np.int32)
        with ThreadPoolExecutor() as threads:
            # The list raises what a thread raised.
            list(threads.map(lambda i: self.read(i, 0, (x[i], y[i, ...])), range(len(self))))
        return Dataset(x, y, self.name, self.n_classes)

    def _part(self, rows: npt.NDArray[np.int64]) -> Self:
        files = tuple(self.files[row] for row in rows)
        return dataclasses.replace(self, files=files, labels=self.labels[rows])


def load_images(
    root: Path, shape: Shape, *, augment: bool = False, seed: int = 0
) -> Splits[ImageFolder]:
    """Find the images of ``root/CLASS/*``, or of ``root/train/CLASS/*`` and ``root/test/CLASS/*``.

    Parameters
    ----------
    root : Path
        The folder.
    shape : tuple of int
        Height, width and channels of the network's input.
    augment : bool
        Whether images to train on are cropped and mirrored at random.
    seed : int
        Decides this.

    Returns
    -------
    Splits
        Files are not opened yet. Classes are numbered in the order of their names.

    Raises
    ------
    UserError
        If there are no folders with images, or classes to test with that are not trained.
    """
    divided = (root / "train").is_dir()
    where = root / "train" if divided else root
    found = _images_by_class(where)
    if not found:
        raise UserError(
            f"{where}: there are no classes here, which are folders with .jpg or .png files"
        )
    names = tuple(found)
    train = _folder(found, names, shape, str(root))
    train = dataclasses.replace(train, augment=augment, seed=seed)
    if not (divided and (root / "test").is_dir()):
        return Splits(train, None)
    tests = _images_by_class(root / "test")
    if not tests:
        raise UserError(f"{root / 'test'}: there are no classes here, as there are in train")
    for name in tests:
        if name not in found:
            raise UserError(f"{root / 'test' / name}: there is no such class in {where}")
    return Splits(train, _folder(tests, names, shape, f"{root} (test)"))


def read_image(path: Path, shape: Shape, rng: np.random.Generator | None = None) -> Any:
    """Decode an image, cut and scaled to `shape`; with `rng` a random part of it.

    Returns
    -------
    float32 array, shape (height, width, channels)
        From -1 to 1.

    Raises
    ------
    UserError
        If the file is no image that can be read.
    """
    height, width, channels = shape
    try:
        with Image.open(path) as file:
            # JPEG decodes faster to a half, a quarter or an eighth, where that is large enough.
            file.draft(_MODES[channels], (2 * width, 2 * height))
            image = file.convert(_MODES[channels])
            box = _box(image.size, width / height, rng)
            image = image.resize((width, height), Image.Resampling.BILINEAR, box)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: this image cannot be read ({reason})") from error
    if rng is not None and rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    values = np.asarray(image, np.float32).reshape(shape)
    return values / 127.5 - 1


def write_digits(root: Path) -> None:
    """Write the shipped handwritten digits as PNG files, ``root/train/CLASS/*`` and ``root/test``.

    Every fifth is one to test with.

    Raises
    ------
    UserError
        If files cannot be written there.
    """
    images, labels = load_raw_digits()
    try:
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            folder = root / ("test" if number % 5 == 0 else "train") / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            # From 0 to 16, to 0 to 255.
            grey = np.minimum(image.astype(np.uint16) * 16, 255).astype(np.uint8)
            Image.fromarray(grey).save(folder / f"{number:04}.png")
    except OSError as error:
        raise UserError(f"{root}: images cannot be written there ({error.strerror})") from error


def _box(
    size: tuple[int, int], aspect: float, rng: np.random.Generator | None
) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the part of an image to take."""
    width, height = min(size[0], size[1] * aspect), min(size[1], size[0] / aspect)
    x, y = 0.5, 0.5
    if rng is not None:
        width, height = width * CROP, height * CROP
        x, y = rng.random(2)
    left, top = x * (size[0] - width), y * (size[1] - height)
    return left, top, min(left + width, size[0]), min(top + height, size[1])


def _images_by_class(root: Path) -> dict[str, list[Path]]:
    try:
        folders = sorted(path for path in root.iterdir() if path.is_dir())
        found = {
            folder.name: sorted(p for p in folder.iterdir() if p.suffix.lower() in EXTENSIONS)
            for folder in folders
        }
    except OSError as error:
        raise UserError(f"{root}: this folder cannot be read ({error.strerror})") from error
    return {name: files for name, files in found.items() if files}


def _folder(
    found: dict[str, list[Path]], names: tuple[str, ...], shape: Shape, name: str
) -> ImageFolder:
    files = tuple(file for images in found.values() for file in images)
    labels = [names.index(label) for label, images in found.items() for _ in images]
    return ImageFolder(files, np.array(labels, np.int32), names, shape, name)
