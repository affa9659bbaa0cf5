"""The one way to open a file that is read, and the one way to write any.

A file that is read is a regular one of bounded size; a file that is written appears under its name
when it is complete, and an earlier one stays until then.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from flexlegion.base.errors import UserError

if TYPE_CHECKING:
    import numpy.typing as npt

_PREFIX, _SUFFIX = ".flexlegion-", ".tmp"
# Ends of pipes that whoever wrote the command has connected: `... | flexlegion`, `<(...)`.
_CONNECTED = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
_SYSTEM = ("/proc/", "/sys/")
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


# How files of weights of other libraries end, which are pickles, or a whole network.
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
_NETWORKS = (".h5", ".hdf5", ".keras", ".onnx", ".pt2")


class Readable(Protocol):
    """What bytes can be read from."""

    def read(self, size: int, /) -> bytes:
        """At most so many; none at the end."""


class NoRegularFileError(OSError):
    """What is to be read is a folder, a pipe, a socket or a device; `strerror` says which."""


def open_file(path: str | Path, *, connected: bool = False) -> BinaryIO:
    """Open a regular file to read bytes; anything else is refused at once.

    Reading a pipe or a device may take for ever, and so may opening one.

    Parameters
    ----------
    path
        The file.
    connected
        Whether the end of a pipe will do that this process was started with, ``/dev/stdin`` and the
        shell's ``<(...)``. Otherwise such a file has to be redirected from a regular one.

    Raises
    ------
    OSError
        If it cannot be opened; `NoRegularFileError` if it is no regular file.
    """
    if "\0" in str(path):
        raise FileNotFoundError(errno.ENOENT, "no file has NUL in its name")
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check_regular(os.fstat(file).st_mode, path, connected)
        os.set_blocking(file, True)
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise


def check_regular(path: str | Path) -> None:
    """Raise `OSError` as `open_file` does, for libraries that open a file by themselves."""
    open_file(path).close()


def _check_regular(mode: int, path: str | Path, connected: bool) -> None:
    if stat.S_ISREG(mode) and os.path.realpath(path).startswith(_SYSTEM):
        # Some of these are endless, and others wait for something to happen.
        raise NoRegularFileError(errno.EINVAL, "it is a part of the running system, not a file")
    if stat.S_ISREG(mode) or (
        connected and stat.S_ISFIFO(mode) and str(path).startswith(_CONNECTED)
    ):
        return
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "no file")
    raise NoRegularFileError(errno.EINVAL, f"it is {kind}, not a file")


def read_at_most(file: Readable, limit: int) -> bytes | None:
    """All that a file has, or None if it has more than `limit` bytes.

    For streams that decompress, too: no more than the limit is decompressed.
    """
    # In chunks: some would allocate the limit first, although there is little to read.
    chunks, rest = [], limit + 1
    while rest > 0 and (chunk := file.read(min(rest, 1 << 20))):
        chunks.append(chunk)
        rest -= len(chunk)
    return None if rest <= 0 else b"".join(chunks)


def write_text(path: str | Path, parts: str | Iterable[str], kind: str) -> None:
    """Write a text file (UTF-8) that appears under its name only when it is complete.

    See `replacing`; `parts` are the text, or parts of it in order, which are not kept.
    """
    with replacing(path, kind) as file:
        for part in [parts] if isinstance(parts, str) else parts:
            file.write(part.encode())


def write_json(path: str | Path, value: Any, kind: str) -> None:
    """Write a JSON file as `json_text` has it; see `replacing`."""
    write_text(path, json_text(value, indent=2) + "\n", kind)


def check_weights_name(path: str | Path) -> None:
    """Raise `UserError` if a file of weights is called as another library's, which it would not be.

    Whoever opened it there would be told that it is damaged.
    """
    suffix = Path(path).suffix
    if suffix in (*PICKLES, *_NETWORKS):
        raise UserError(
            f"{path}: weights are written as .npz or .safetensors, and not as {suffix}, which "
            "another library reads; flexlegion.to_torch brings them into a PyTorch module"
        )


def write_arrays(path: str | Path, arrays: Mapping[str, npt.NDArray[Any]], kind: str) -> None:
    """Write arrays by name as ``numpy.savez`` does, under the very name given; see `replacing`."""
    import numpy as np

    with replacing(path, kind) as file:
        np.savez(file, allow_pickle=False, **arrays)


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON, which knows no infinity and no nan: they become ``null``."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(its) for key, its in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


@contextmanager
def replacing(path: str | Path, kind: str) -> Iterator[BinaryIO]:
    """A binary file to write, which takes the path's place when the block ends.

    Until then, and for good if the block raises or the process is killed, an earlier file of that
    name stays as it is. A new file has the usual permissions, a replaced one those it had. A
    symbolic link stays, and the file that it leads to is replaced. What is no regular file, such as
    ``/dev/stdout``, is written directly.

    Parameters
    ----------
    path
        The file; its name is the name that is written.
    kind
        What it is, for messages: ``"strategy"``.

    Raises
    ------
    UserError
        If the file cannot be written there.
    """
    try:
        with _replacing(path) as file:
            yield file
    except OSError as e:
        raise _unwritable(path, kind, e) from None


def check_writable(path: str | Path, kind: str) -> None:
    """Raise `UserError` if `replacing` could not write there, before work is done in vain.

    Leaves an earlier file as it is, and nothing new behind.
    """

    class Enough(Exception):
        pass

    try:
        if not os.path.exists(path) or os.path.isfile(path):
            with suppress(Enough), _replacing(path):
                raise Enough
        elif not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        elif not stat.S_ISFIFO(os.stat(path).st_mode):  # opened and closed, a pipe would end
            file = _open_special(path)
            try:
                os.write(file, b"")  # which /dev/full refuses
            finally:
                os.close(file)
    except OSError as e:
        raise _unwritable(path, kind, e) from None


def _unwritable(path: str | Path, kind: str, error: OSError) -> UserError:
    reason = error.strerror or error
    if error.errno == errno.ENXIO:
        reason = "it is a pipe or a socket from which nobody reads"
    return UserError(
        f"{path}: the {kind} cannot be written there ({reason}); give the name of a file in a "
        "folder that exists"
    )


def _open_special(path: str | Path) -> int:
    # Not blocking, or it would wait for somebody to read from a pipe, maybe for ever.
    file = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    os.set_blocking(file, True)
    return file


@contextmanager
def _replacing(path: str | Path) -> Iterator[BinaryIO]:
    _check_named(path)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        with os.fdopen(_open_special(path), "wb") as special:
            yield special
        return
    target = os.path.realpath(path)
    if mode is not None:
        os.close(os.open(target, os.O_WRONLY))  # raises if the file is protected
    # In the same folder, because only within a file system is a replacement one step.
    folder = os.path.dirname(target)
    _remove_leftovers(folder)
    # Its name is known before it is there, so that a signal at any moment leaves nothing.
    temporary = os.path.join(folder, f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}")
    try:
        with _locked(temporary) as file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def _check_named(path: str | Path) -> None:
    """Raise `OSError` for what names no file, and would be the folder that it is in, or another."""
    if not str(path):
        raise FileNotFoundError(errno.ENOENT, "its name is empty")
    if "\0" in str(path):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if str(path).endswith(os.sep):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def _locked(name: str) -> BinaryIO:
    """A new file, locked for as long as this process has it open: see `_remove_leftovers`."""
    while True:
        file = open(name, "xb")  # noqa: SIM115 (the caller closes it)
        with suppress(OSError):  # a file system without locks: nothing is removed there, either
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.exists(name):
            return file
        file.close()  # between the two lines another process took it for a leftover


def _remove_leftovers(folder: str) -> None:
    """Remove the temporary files in a folder whose processes were killed.

    The system gives a lock back when the process ends, however it ends, and on whichever machine of
    those that share the folder.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX):
                _remove_if_left(entry.path)


def _remove_if_left(path: str) -> None:
    with suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(file).st_mode):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
        finally:
            os.close(file)


def _sync_folder(folder: str) -> None:
    """Have the new name survive a loss of power, where the file system can do that."""
    with suppress(OSError):
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
