"""Folders of images, one folder a class, read while training runs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from flexlegion.base.errors import UserError
from flexlegion.base.files import open_file
from flexlegion.data.dataset import Splits, split_rows
from flexlegion.data.digits import load_raw_digits
from flexlegion.data.reading import reading
from flexlegion.data.sources import BatchSource
from flexlegion.graph.tensor import Shape

EXTENSIONS = (".jpg", ".jpeg", ".png")
# Sets that take no more bytes are decoded once, and kept.
IN_MEMORY = 2**30
# What a random crop takes of an image's sides: 224 of 256 pixels.
CROP = 224 / 256
BYTE_VALUES = np.arange(256, dtype=np.float32) / np.float32(127.5) - 1

MAX_PIXELS = 64 * 2**20
# Pillow warns of more than these, and nobody would see who warns.
warnings.simplefilter("error", Image.DecompressionBombWarning)
_FORMATS = ("JPEG", "PNG")
_MODES = {1: "L", 3: "RGB"}

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class ImageFolder(BatchSource):
    """Image files with their classes.

    The largest centred part of an image that has the shape of the network's input is scaled to its
    size; when augmented to 8/7 of that, of which an epoch takes a random part, mirrored or not.
    Values 0 to 255 become -1 to 1. What is decoded is kept, unless the set takes more than 1 GiB.

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
    _kept: _Kept = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or self.shape[2] not in _MODES or min(self.shape) < 1:
            raise UserError(
                f"{self.name}: images become arrays (height, width, channel) of 1 or 3 channels, "
                f"but the network's input has the shape {list(self.shape)}"
            )
        height, width, channels = self.shape
        if self.augment:
            height, width = round(height / CROP), round(width / CROP)
        kept = _Kept(len(self.files), (height, width, channels))
        object.__setattr__(self, "_kept", kept)  # as the class is frozen

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

    @property
    def byte_values(self) -> tuple[npt.NDArray[np.float32] | None, ...]:
        """Images are bytes."""
        return (BYTE_VALUES, None)

    def read(self, row: int, epoch: int, out: Sequence[npt.NDArray[Any]]) -> None:
        """Decode an image; see `BatchSource`."""
        pixels = self._kept.pixels(row, self.files[row])
        if self.augment:
            rng = np.random.default_rng([self.seed, epoch, row])
            pixels = _random_part(pixels, self.shape, rng)
        out[0][...] = pixels
        self.read_labels(row, epoch, out)

    def read_labels(self, row: int, _epoch: int, out: Sequence[npt.NDArray[Any]]) -> None:
        """Its class; see `BatchSource`."""
        out[-1][...] = self.labels[row]

    def split(self, held_out: float, seed: int) -> tuple[Self, Self]:
        """Divide at random into a part to train on and one to test with; see `Dataset.split`."""
        rest, held = split_rows(self.name, len(self), held_out, seed)
        return self._part(rest), dataclasses.replace(self._part(held), augment=False)

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


def read_image(path: Path, shape: Shape) -> Pixels:
    """Decode an image, its largest centred part scaled to `shape`.

    Returns
    -------
    uint8 array, shape (height, width, channels)
        `BYTE_VALUES` has what its values stand for.

    Raises
    ------
    UserError
        If the file is no image that can be read.
    """
    with reading(path, "an image"), open_file(path) as content:
        return _pixels(content, str(path), shape)


def decoded(content: BinaryIO, where: str, shape: Shape) -> npt.NDArray[np.float32]:
    """The values of an image (height, width, channels), as `read_image` and `BYTE_VALUES` have it.

    Parameters
    ----------
    content
        Of its file.
    where
        For messages, where it is from.
    shape
        To which it is cut and scaled.

    Raises
    ------
    UserError
        If it is no image that can be read.
    """
    with reading(where, "an image"):
        return BYTE_VALUES[_pixels(content, where, shape)]


def _pixels(content: BinaryIO, where: str, shape: Shape) -> Pixels:
    height, width, channels = shape
    # Not all that Pillow knows: some formats are programs, which it would run.
    with Image.open(content, formats=_FORMATS) as file:
        if prod(file.size) > MAX_PIXELS:
            raise UserError(
                f"{where}: this image has {file.width:,} x {file.height:,} pixels, and "
                f"{MAX_PIXELS:,} at most are read"
            )
        # JPEG decodes faster to a half, a quarter or an eighth, where that is large enough.
        file.draft(_MODES[channels], (2 * width, 2 * height))
        image = file.convert(_MODES[channels])
        box = _centre(image.size, width / height)
        image = image.resize((width, height), Image.Resampling.BILINEAR, box)
    pixels: Pixels = np.asarray(image).reshape(shape)
    return pixels


class _Kept:
    """Images that were decoded before, if all of them have room in memory.

    Only what was decoded takes memory: of several ranks, each has what it read.
    """

    def __init__(self, number: int, shape: Shape) -> None:
        self._shape = shape
        self._pixels: Pixels | None = None
        self._known = np.zeros(number, np.bool_)
        if number * prod(shape) <= IN_MEMORY:
            self._pixels = np.zeros((number, *shape), np.uint8)

    def pixels(self, row: int, path: Path) -> Pixels:
        """An image; threads call this at the same time."""
        if self._pixels is None:
            return read_image(path, self._shape)
        kept: Pixels = self._pixels[row]
        if not self._known[row]:
            kept[...] = read_image(path, self._shape)
            self._known[row] = True
        return kept


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


def _centre(size: tuple[int, int], aspect: float) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the largest centred part of that aspect."""
    width, height = min(size[0], size[1] * aspect), min(size[1], size[0] / aspect)
    left, top = (size[0] - width) / 2, (size[1] - height) / 2
    return left, top, min(left + width, size[0]), min(top + height, size[1])


def _random_part(pixels: Pixels, shape: Shape, rng: np.random.Generator) -> Pixels:
    """A part of an image, mirrored or not."""
    room = np.subtract(pixels.shape, shape)
    top, left, _ = rng.integers(0, room, endpoint=True)
    part = pixels[top : top + shape[0], left : left + shape[1]]
    return part[:, ::-1] if rng.random() < 0.5 else part


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
