"""Small files that unpack to much, or state that they have much, are refused before it is read."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from flexlegion import UserError
from flexlegion.data.idx import read_idx
from flexlegion.data.images import read_image
from flexlegion.data.loaders import load
from flexlegion.data.reading import SMALL
from flexlegion.data.text import read_lines

NOTHING = bytes(1 << 20)


def packed_idx(folder: Path) -> None:
    path = folder / "a-idx1-ubyte.gz"
    with gzip.open(path, "wb") as file:
        for _ in range((SMALL >> 20) + 1):
            file.write(NOTHING)
    read_idx(path)


def packed_text(folder: Path) -> None:
    path = folder / "a.txt.xz"
    with lzma.open(path, "wb", preset=0) as file:
        for _ in range((SMALL >> 20) + 1):
            file.write(NOTHING)
    read_lines(path)


def holes(folder: Path) -> None:
    path = folder / "a.txt"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    read_lines(path)


def npz(folder: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.zeros((SMALL + 1, 1), np.uint8))
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", array.getvalue())
    load(str(folder / "a.npz"))


def hdf5(folder: Path) -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", (1 << 38,), "u1", chunks=(1 << 20,))
        file["y"] = [1]
    load(str(folder / "a.h5"))


@pytest.mark.parametrize("bomb", [packed_idx, packed_text, holes, npz, hdf5])
def test_growth(bomb: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="times"):
        bomb(tmp_path)


def test_what_is_mostly_zeros_may_grow(tmp_path: Path) -> None:
    lines = ["0" * 10_000] * 1000
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    assert read_lines(tmp_path / "a.txt.gz") == lines


def test_many_pixels(tmp_path: Path) -> None:
    Image.new("1", (9000, 9000)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match="this image has 9,000 x 9,000 pixels"):
        read_image(tmp_path / "a.png", (8, 8, 1))


def test_pipes(tmp_path: Path) -> None:
    for name in ("a-idx1-ubyte", "a.npz", "a.h5", "a.png", "a.txt"):
        os.mkfifo(tmp_path / name)
    for read in (
        lambda: read_idx(tmp_path / "a-idx1-ubyte"),
        lambda: load(str(tmp_path / "a.npz")),
        lambda: load(str(tmp_path / "a.h5")),
        lambda: read_image(tmp_path / "a.png", (8, 8, 1)),
        lambda: read_lines(tmp_path / "a.txt"),
    ):
        with pytest.raises(UserError, match="it is a pipe, not a file"):
            read()


def test_a_row_of_a_table_that_csv_cannot_read(tmp_path: Path) -> None:
    from flexlegion.data.classification import load_classification

    (tmp_path / "a.csv").write_text(f"a,b\nc,{'d' * 200_000}\n")
    with pytest.raises(UserError, match="line 2 cannot be read as one of a"):
        load_classification(tmp_path / "a.csv", 4, 100)
