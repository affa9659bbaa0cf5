"""MNIST's IDX files: a magic number, the extents, then the values; integers are big-endian.

The magic number is two zero bytes, a code for the type of the values, and the number of dimensions.
"""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.data.reading import read_content

_MAX_DIMS = 32
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
# "train-images-idx3-ubyte" is the original spelling; many copies have "train-images.idx3-ubyte".
_NAME = re.compile(r"[.-]idx\d?(-ubyte)?(\.gz)?$")
_SPELLINGS = ("-idx{0}-ubyte", ".idx{0}-ubyte", "-idx{0}-ubyte.gz", ".idx{0}-ubyte.gz")

Pair = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def is_idx_name(path: Path) -> bool:
    """Whether the file is named as IDX files are, ``…-idx3-ubyte`` or ``….idx``, ``.gz`` or not."""
    return _NAME.search(path.name) is not None


def read_idx(path: Path) -> npt.NDArray[Any]:
    """Read one IDX file, compressed by gzip or not.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    array
        With the file's extents and type, in the machine's byte order.

    Raises
    ------
    UserError
        If the file cannot be read, is no IDX file, or does not have the length it states.
    """
    content = read_content(path, "an IDX file")
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES or not content[3]:
        raise UserError(
            f"{path}: this is no IDX file, because it starts with the bytes "
            f"{content[:4].hex(' ') or '(none)'} where, for example, MNIST's images start with "
            "00 00 08 03."
        )
    dtype, n_dims = np.dtype(_TYPES[content[2]]), content[3]
    start = 4 + 4 * n_dims
    if len(content) < start:
        raise UserError(
            f"{path}: this IDX file is truncated, it has {len(content)} bytes where the header "
            f"alone needs {start}."
        )
    shape = struct.unpack(f">{n_dims}I", content[4:start])
    # Python's integers: a corrupt header can state more than 64 bits hold.
    expected = start + math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        fault = "truncated" if len(content) < expected else "too long"
        raise UserError(
            f"{path}: this IDX file is {fault}, it has {len(content)} bytes where the shape "
            f"{shape} in its header makes {expected}."
        )
    if n_dims > _MAX_DIMS:
        raise UserError(
            f"{path}: this IDX file has {n_dims} dimensions, and {_MAX_DIMS} at most are read."
        )
    values = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


def read_idx_directory(directory: Path) -> tuple[Pair, Pair | None]:
    """Read MNIST's files from a directory: two to train on and, if there, two to test with.

    Returns
    -------
    tuple
        (images, labels) of ``train-*``, and of ``t10k-*`` or None.

    Raises
    ------
    UserError
        If the files to train on are missing, or the test files are incomplete or faulty.
    """
    train = _read_pair(directory, "train")
    if train is None:
        raise UserError(
            f"{directory}: this directory has no folders of images, one a class, and lacks MNIST's "
            "train-images-idx3-ubyte and train-labels-idx1-ubyte (each .gz or not)."
        )
    return train, _read_pair(directory, "t10k")


def is_idx_directory(directory: Path) -> bool:
    """Whether a directory has any of MNIST's files."""
    parts = (("train", "images", 3), ("train", "labels", 1), ("t10k", "images", 3))
    return any(_find(directory, *part) is not None for part in parts)


def labels_beside(images: Path) -> Path:
    """Find the file with the labels of an IDX file with images by its usual name.

    Raises
    ------
    UserError
        If there is no such file.
    """
    name = images.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1")
    candidates = [images.with_name(name), images.with_name(f"{name}.gz")]
    for candidate in candidates:
        if candidate != images and candidate.exists():
            return candidate
    raise UserError(
        f"{images}: there is no {name} (.gz or not) with labels beside these images, so name the "
        "file with `labels`."
    )


def _read_pair(directory: Path, part: str) -> Pair | None:
    paths = [_find(directory, part, "images", 3), _find(directory, part, "labels", 1)]
    images, labels = paths
    if images is not None and labels is not None:
        return read_idx(images), read_idx(labels)
    if images is None and labels is None:
        return None
    there, missing = (images, "labels-idx1") if labels is None else (labels, "images-idx3")
    raise UserError(
        f"{directory}: there is {there.name if there else ''} but no {part}-{missing}-ubyte, and "
        "the two (each .gz or not) are needed together."
    )


def _find(directory: Path, part: str, kind: str, n_dims: int) -> Path | None:
    candidates = (directory / f"{part}-{kind}{end.format(n_dims)}" for end in _SPELLINGS)
    return next((path for path in candidates if path.exists()), None)
