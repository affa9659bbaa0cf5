"""Files that are written past the page cache have what was given, however it comes in pieces."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from flexlegion.training.checkpoints.direct_file import _BUFFER, DirectFile


def written(path: Path, size: int, piece: int) -> bytes:
    """Write so many bytes, in such pieces; returns them."""
    data = np.random.default_rng(size).bytes(size)
    with DirectFile(path) as file:
        for start in range(0, size, piece):
            file.write(memoryview(data)[start : start + piece])
        file.sync()
    return data


@pytest.mark.parametrize("size", [0, 1, 4096, _BUFFER - 1, _BUFFER, _BUFFER + 4097])
@pytest.mark.parametrize("piece", [_BUFFER * 2, 1_000_003])
def test_contents(size: int, piece: int, tmp_path: Path) -> None:
    data = written(tmp_path / "file", size, piece)
    assert (tmp_path / "file").read_bytes() == data


def test_other_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that refuses a block, or takes a part of it, is written to as usual."""
    calls = 0
    write = os.write

    def reluctant(file: int, data: memoryview) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return write(file, data[:4096])
        if calls == 2:
            raise OSError(errno.EINVAL, "no whole block")
        return write(file, data)

    monkeypatch.setattr(os, "write", reluctant)
    data = written(tmp_path / "file", _BUFFER + 5, _BUFFER)
    assert calls > 2
    assert (tmp_path / "file").read_bytes() == data


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int, _data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        written(tmp_path / "file", 10, 10)


def test_an_existing_file_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError):
        written(tmp_path / "file", 10, 10)
    assert (tmp_path / "file").read_text() == "mine"
