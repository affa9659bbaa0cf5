"""How all data files are opened: what is no file, what bursts, and what is damaged.

A small file can unpack to more than any memory holds, and a file's header can state any size. Both
are measured against the bytes that the file really has, before memory is taken.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from flexlegion.base.errors import UserError
from flexlegion.base.files import open_file, read_at_most

# Data that were packed grow to a few times their size, arrays of mostly zeros to several hundred
# times; deflate can do 1,030 times. What remains small may be anything.
MAX_GROWTH = 200
SMALL = 64 << 20

_OPENERS: dict[str, Callable[[BinaryIO], gzip.GzipFile | lzma.LZMAFile]] = {
    "gzip": lambda file: gzip.GzipFile(fileobj=file),
    "xz": lzma.LZMAFile,
}
_MAGIC = {"gzip": b"\x1f\x8b", "xz": b"\xfd7zXZ\0"}


@contextmanager
def reading(path: Path | str, kind: str) -> Iterator[None]:
    """Meanwhile, whatever a library raises about a file becomes a `UserError` that names the file.

    Libraries raise nearly anything about a damaged file, some of which their documentation does not
    know: so this catches all of it.

    Parameters
    ----------
    path
        The file.
    kind
        What it should be: ``"an .npz file"``.
    """
    try:
        yield
    except UserError:
        raise
    except MemoryError:
        raise UserError(
            f"{path}: the memory does not suffice for what this file holds, or says that it holds"
        ) from None
    except Exception as error:
        # Libraries report over several lines and with a full stop: our sentence is one.
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        # Of objects within, <_io.BufferedReader name=3>, nobody learns anything.
        reason = " ".join(re.sub("<[^<>]*>", "", reason).split()).rstrip(".")
        raise UserError(
            f"{path}: this cannot be read as {kind} ({reason}); a whole one is needed."
        ) from error


def read_content(path: Path, kind: str) -> bytes:
    """The bytes of a file, unpacked if it was packed by gzip or xz.

    By content, not by name: browsers unpack a .gz and keep its name.

    Raises
    ------
    UserError
        If it is no regular file, is damaged, or grows without bounds when it is unpacked.
    """
    with reading(path, kind), open_file(path) as file:
        status = os.fstat(file.fileno())
        size = status.st_size
        check_growth(path, "it", 512 * status.st_blocks, size)  # a file may have holes
        start = file.read(8)
        file.seek(0)
        packing = next((name for name, magic in _MAGIC.items() if start.startswith(magic)), None)
        if packing is None:
            return file.read()
        limit = max(SMALL, size * MAX_GROWTH)
        with _OPENERS[packing](file) as unpacked:
            content = read_at_most(unpacked, limit)
    if content is None:
        raise UserError(
            f"{path}: the {size:,} bytes of this {packing} file unpack to more than {limit:,}, "
            f"{MAX_GROWTH} times as many, and data do not; unpack it by hand if they do"
        )
    return content


def check_growth(path: Path, what: str, stored: int, stated: int) -> None:
    """Raise `UserError` if a part of a file states far more bytes than it has stored.

    Parameters
    ----------
    path
        The file.
    what
        The part, for messages: ``"array x"``.
    stored, stated
        Bytes in the file, and in memory by its header.
    """
    if stated > max(SMALL, MAX_GROWTH * stored):
        raise UserError(
            f"{path}: {what} states {stated:,} bytes, of which the file has {stored:,}, and data "
            f"do not grow more than {MAX_GROWTH} times when they are unpacked"
        )


def check_members(path: Path, file: BinaryIO) -> None:
    """`check_growth` for what is in a ZIP archive; the file is at its start afterwards."""
    with zipfile.ZipFile(file) as archive:
        for its in archive.infolist():
            check_growth(path, f"its part {its.filename}", its.compress_size, its.file_size)
    file.seek(0)


def check_archive(path: Path, kind: str) -> None:
    """Raise `UserError` if a library that opens a ZIP archive by itself should not open that file.

    It has to be a regular one, an archive, and not to burst when it is unpacked.
    """
    with reading(path, kind), open_file(path) as file:
        if not zipfile.is_zipfile(file):
            raise UserError(f"{path}: not {kind}, or cut short: it is no ZIP archive")
        check_members(path, file)
