"""A checkpoint on disk: a folder that appears under its name when all of it is written.

``step-00000500/`` holds

- ``weights-R-of-N.safetensors`` and ``optimizer-R-of-N.safetensors`` of each of N ranks,
- ``state.json``: where training is, and what it consists of,
- ``manifest.json``: the size and checksum of each of these files, written last.

A tensor's key is its weight's name, followed by ``/m``, say, for an optimizer's state of it. Where
a rank has only a part, the part's bounds follow: ``dense.kernel/m[0:64,0:128]``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.documents import Section, read_json
from flexlegion.base.errors import UserError
from flexlegion.base.files import check_regular, json_text, open_file
from flexlegion.base.quoting import printable, warn
from flexlegion.training.checkpoints.direct_file import DirectFile
from flexlegion.training.checkpoints.state import checked_state

Array = npt.NDArray[Any]
Box = tuple[tuple[int, int], ...]

FORMAT = 1
MANIFEST, STATE = "manifest.json", "state.json"
_NAME = re.compile(r"step-(\d{8,})")
TEMPORARY = ".writing-"  # how names of folders begin that are not complete
_PART = re.compile(r"(.*)\[((?:[0-9]{1,18}:[0-9]{1,18},?)+)(?<!,)\]", re.DOTALL)
_DTYPES = {"float32": "F32", "int32": "I32"}
_CHUNK = 32 << 20  # bytes; hashed and written at a time, while they are in the cache
_MOST = 1 << 62


class DamagedError(UserError):
    """A checkpoint, or a file of it, is not as it was written."""


@dataclass(frozen=True)
class Sum:
    """What a whole file is known by: its size in bytes, and its xxh3_128 in hexadecimal digits."""

    bytes: int
    xxh3_128: str


def folder_name(step: int) -> str:
    """What the checkpoint after so many iterations is called."""
    return f"step-{step:08}"


def folders(directory: Path) -> list[Path]:
    """The checkpoints in a directory, oldest first; whether they are whole is not looked at."""
    try:
        names = [name for name in os.listdir(directory) if _NAME.fullmatch(name)]
    except FileNotFoundError:
        return []
    except OSError as e:
        raise UserError(f"{directory}: the checkpoints cannot be listed ({e.strerror})") from None
    return [directory / name for name in sorted(names, key=lambda name: int(name[5:]))]


def remove(folder: Path) -> None:
    """Remove a checkpoint; if that is interrupted, nothing that looks like one is left."""
    hidden = folder.with_name(f"{TEMPORARY}removed-{folder.name}-{os.getpid()}")
    os.rename(folder, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def remove_leftovers(directory: Path) -> None:
    """Remove what killed runs have left incomplete."""
    for entry in directory.iterdir():
        if entry.name.startswith(TEMPORARY):
            shutil.rmtree(entry, ignore_errors=True)


# Writing


def tensor_file(arrays: Mapping[str, Array]) -> list[Any]:
    """The parts of a safetensors file, in order; tensors are not copied, as the package would."""
    entries, at = {}, 0
    for key, array in arrays.items():
        span = [at, at + array.nbytes]
        entries[key] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": array.shape,
            "data_offsets": span,
        }
        at = span[1]
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)  # tensors begin at a multiple of 8
    tensors = (np.ascontiguousarray(array).data for array in arrays.values())
    return [struct.pack("<Q", len(header)), header, *tensors]


def write_tensors(path: Path, arrays: Mapping[str, Array]) -> Sum:
    """Write a safetensors file, to the disk.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    return _write(path, tensor_file(arrays))


def write_document(path: Path, text: str) -> Sum:
    """Write a JSON file, to the disk; see `write_tensors`."""
    return _write(path, [f"{text}\n".encode()])


def _write(path: Path, parts: Sequence[Any]) -> Sum:
    digest, size = _hasher(), 0
    with DirectFile(path) as file:
        for part in parts:
            view = memoryview(part).cast("B") if memoryview(part).nbytes else memoryview(b"")
            for start in range(0, len(view), _CHUNK):
                chunk = view[start : start + _CHUNK]
                digest.update(chunk)
                file.write(chunk)
            size += len(view)
        file.sync()
    return Sum(size, digest.hexdigest())


def write_manifest(folder: Path, files: Mapping[str, Sum]) -> None:
    """Write the last file, and make the folder's entries last."""
    document = {"format": FORMAT, "files": {name: asdict(its) for name, its in files.items()}}
    write_document(folder / MANIFEST, json_text(document, indent=1))
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a loss of power, where the file system can do that."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    except OSError:
        pass
    finally:
        os.close(file)


# Reading


class Checkpoint:
    """A checkpoint that was written.

    Parameters
    ----------
    folder
        Its folder.

    Raises
    ------
    DamagedError
        If it has no manifest, or one that cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not os.path.isdir(self.folder):
            raise UserError(f"{printable(str(folder))}: no such checkpoint; give its folder")
        document = self._document(MANIFEST)
        with _damaged():
            section = Section.of(document, str(self.folder / MANIFEST), ("format", "files"))
            if section.integer("format", 1, _MOST) > FORMAT:
                raise UserError(
                    f"{self.folder}: written by a newer flexlegion, in format "
                    f"{document['format']}; this one knows {FORMAT}"
                )
            self.files = {}
            for name, entry in section.entries("files").items():
                where = f"{self.folder / MANIFEST}: '{name}'"
                its = Section.of(entry, where, ("bytes", "xxh3_128"))
                self.files[name] = Sum(its.integer("bytes", 0, _MOST), its.text("xxh3_128"))
                if Path(name).name != name:
                    raise UserError(f"{where} is in another folder")

    @property
    def step(self) -> int:
        """Iterations before it."""
        return int(self.state["training"]["position"]["step"])

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(its.bytes for its in self.files.values())

    @cached_property
    def state(self) -> dict[str, Any]:
        """What ``state.json`` has; see `checked_state`."""
        self.check(STATE)
        document = self._document(STATE)
        with _damaged():
            return checked_state(document, self.folder / STATE)

    def check(self, name: str) -> None:
        """Raise `DamagedError` unless that file is as it was written."""
        expected, digest = self.files.get(name), _hasher()
        if expected is None:
            raise DamagedError(f"{self.folder}: damaged: it has no {name}")
        path = self.folder / name
        try:
            with open_file(path) as file:
                size = os.fstat(file.fileno()).st_size
                if size != expected.bytes:
                    raise DamagedError(
                        f"{path}: damaged: it has {size} bytes, not {expected.bytes}"
                    )
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
        except OSError as e:
            raise DamagedError(f"{path}: damaged: it cannot be read ({e.strerror})") from None
        if digest.hexdigest() != expected.xxh3_128:
            raise DamagedError(f"{path}: damaged: its checksum is not that of what was written")

    def check_all(self) -> None:
        """Raise `DamagedError` unless all files are as they were written."""
        for name in self.files:
            self.check(name)
        _ = self.state

    @cached_property
    def _parts(self) -> dict[str, list[tuple[Any, str, Box | None]]]:
        """By tensor: the open file, the key there, and which part of the tensor it is."""
        from safetensors import SafetensorError, safe_open

        parts: dict[str, list[tuple[Any, str, Box | None]]] = {}
        for name in self.files:
            if not name.endswith(".safetensors"):
                continue
            path = self.folder / name
            try:
                check_regular(path)
                file: Any = safe_open(str(path), framework="numpy")
            except (SafetensorError, OSError, ValueError) as e:
                raise DamagedError(f"{path}: damaged: {printable(str(e))}") from None
            for key in file.keys():  # noqa: SIM118 (it is no mapping)
                tensor, box = _of_key(key)
                parts.setdefault(tensor, []).append((file, key, box))
        return parts

    def __contains__(self, tensor: str) -> bool:
        return tensor in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def read(self, tensor: str) -> Array:
        """A whole tensor, put together from the parts that ranks wrote.

        Raises
        ------
        UserError
            If there is no such tensor.
        """
        if tensor not in self._parts:
            raise UserError(f"{self.folder}: it has no tensor '{tensor}'")
        from safetensors import SafetensorError

        try:
            return self._joined(tensor)
        except (SafetensorError, ValueError, TypeError, MemoryError) as e:
            reason = printable(str(e), 200)
            raise DamagedError(
                f"{self.folder}: damaged: '{printable(tensor, 80)}' cannot be read ({reason})"
            ) from None

    def _joined(self, tensor: str) -> Array:
        parts = self._parts[tensor]
        if parts[0][2] is None:
            return np.asarray(parts[0][0].get_tensor(parts[0][1]))
        boxes = [box or () for _, _, box in parts]
        shape = tuple(max(hi for _, hi in bounds) for bounds in zip(*boxes, strict=True))
        extents = [tuple(hi - lo for lo, hi in box) for box in boxes]
        if sum(map(prod, extents)) != prod(shape):
            raise ValueError("parts of it are missing")
        whole: Array | None = None
        for (file, key, _), box, its in zip(parts, boxes, extents, strict=True):
            part = np.asarray(file.get_tensor(key))
            if part.shape != its:
                raise ValueError("a part is not as large as it says")
            whole = np.empty(shape, part.dtype) if whole is None else whole
            whole[tuple(slice(*bounds) for bounds in box)] = part
        assert whole is not None
        return whole

    def _document(self, name: str) -> Any:
        path = self.folder / name
        with _damaged():
            return read_json(path, "checkpoint's", "it was not written completely", "of ours")


def newest_whole(directory: Path) -> Checkpoint | None:
    """The newest checkpoint that is not damaged; damaged ones are named on standard error.

    Raises
    ------
    UserError
        If all are damaged.
    """
    damaged = ""
    for folder in reversed(folders(directory)):
        try:
            checkpoint = Checkpoint(folder)
            checkpoint.check_all()
        except DamagedError as e:
            damaged = str(e)
            warn(f"{damaged}; taking the one before it")
        else:
            return checkpoint
    if damaged:
        raise UserError(f"{directory}: no checkpoint in it is whole; name another folder")
    return None


def key_of(tensor: str, box: Box | None) -> str:
    """The key of a tensor, or of a part of it."""
    if box is None:
        return tensor
    return f"{tensor}[{','.join(f'{lo}:{hi}' for lo, hi in box)}]"


def _of_key(key: str) -> tuple[str, Box | None]:
    match = _PART.fullmatch(key)
    if match is None:
        return key, None
    bounds = [part.split(":") for part in match[2].split(",")]
    return match[1], tuple((int(lo), int(hi)) for lo, hi in bounds)


@contextmanager
def _damaged() -> Iterator[None]:
    try:
        yield
    except UserError as e:
        raise DamagedError(str(e)) from None


def _hasher() -> Any:
    import xxhash

    return xxhash.xxh3_128()
