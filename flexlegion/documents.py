"""Documents: JSON files that people write are read, and texts written whole or not at all.

A fault becomes one sentence that names its place.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from flexlegion.errors import UserError

# Far more than any such file has; what never ends (a device, a pipe) should not fill the memory.
MAX_BYTES = 64 << 20


def read_json(path: str | Path, kind: str, missing: str, like: str) -> Any:
    """The parsed content of a JSON file.

    Parameters
    ----------
    path
        The file.
    kind
        What the file should be, for messages: ``"strategy"``, ``"machine"``.
    missing, like
        For messages: what to give instead of a file that does not exist; what such a file is like.

    Raises
    ------
    UserError
        If the file is missing, cannot be read, is too large, or is not JSON; or if a name occurs
        twice in one object.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content[:MAX_BYTES].decode("utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such {kind} file; {missing}") from None
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not text"
        raise UserError(
            f"{path}: cannot be read as a {kind} file ({reason}); give a JSON file {like}"
        ) from None
    if len(content) > MAX_BYTES:
        raise UserError(
            f"{path}: too large for a {kind} file, which has at most {MAX_BYTES >> 20} MiB; give a "
            f"JSON file {like}"
        )
    try:
        return json.loads(text, object_pairs_hook=_object_of)
    except json.JSONDecodeError as e:
        raise UserError(
            f"{path}: not JSON, or cut short (line {e.lineno}, column {e.colno}: {e.msg}); "
            f"give a whole file {like}"
        ) from None
    except UserError as e:
        raise UserError(f"{path}: {e}") from None
    except (ValueError, RecursionError):
        raise UserError(
            f"{path}: not a {kind} file; its numbers or its nesting are out of all bounds"
        ) from None


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a name that occurs twice, plain parsing would keep the last entry."""
    names = set()
    for name, _ in pairs:
        if name in names:
            raise UserError(f"the name '{name}' occurs twice in one object; keep one entry")
        names.add(name)
    return dict(pairs)


def write_text(path: str | Path, parts: str | Iterable[str], kind: str) -> None:
    """Write a text file (UTF-8) that appears under its name only when it is complete.

    Until then an earlier file of that name stays as it is; if something fails, for good. A new file
    has the usual permissions, a replaced one those it had. What is no regular file, such as
    ``/dev/stdout``, is written directly.

    Parameters
    ----------
    path
        The file. A symbolic link stays, and the file that it leads to is replaced.
    parts
        The text, or parts of it in order, which are not kept.
    kind
        What it is, for messages: ``"strategy"``.

    Raises
    ------
    UserError
        If the file cannot be written there.
    """
    try:
        with _replacing(path) as file:
            file.writelines([parts] if isinstance(parts, str) else parts)
    except OSError as e:
        raise _unwritable(path, kind, e) from None


def check_writable(path: str | Path, kind: str) -> None:
    """Raise `UserError` if `write_text` could not write there, before work is done in vain.

    Leaves an earlier file as it is, and nothing new behind.
    """

    class Enough(Exception):
        pass

    try:
        if not os.path.exists(path) or os.path.isfile(path):
            with suppress(Enough), _replacing(path):
                raise Enough
        elif os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        elif not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as e:
        raise _unwritable(path, kind, e) from None


def _unwritable(path: str | Path, kind: str, error: OSError) -> UserError:
    return UserError(
        f"{path}: the {kind} cannot be written there ({error.strerror or error}); give the name of "
        "a file in a folder that exists"
    )


@contextmanager
def _replacing(path: str | Path) -> Iterator[TextIO]:
    """A text file that takes the path's place when the block ends without an exception."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        with open(path, "w", encoding="utf-8") as file:
            yield file
        return
    target = os.path.realpath(path)
    if mode is not None:
        os.close(os.open(target, os.O_WRONLY))  # raises if the file is protected
    # In the same folder, because only within a file system is a replacement one step.
    temporary = os.path.join(os.path.dirname(target), f".flexlegion-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8") as file:
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


def shown(value: object) -> str:
    """A parsed JSON value for a message: as it stands in the file, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class Section:
    """A JSON object whose keys are known, and its place for messages.

    Parameters
    ----------
    values
        The object's entries.
    where
        For example ``"my.json: node"``.
    """

    values: dict[str, Any]
    where: str

    @classmethod
    def of(
        cls, value: Any, where: str, required: Collection[str], optional: Collection[str] = ()
    ) -> Section:
        """Raise `UserError` unless `value` is an object with exactly those keys."""
        if not isinstance(value, dict):
            names = ", ".join(f"'{key}'" for key in required or optional)
            raise UserError(
                f"{where}: has to be an object with the keys {names}, but is {shown(value)}"
            )
        for key in value:
            if key not in required and key not in optional:
                choices = ", ".join([*required, *optional])
                raise UserError(f"{where}: unknown key {shown(key)}; the keys are {choices}")
        for key in required:
            if key not in value:
                raise UserError(
                    f"{where}: the key '{key}' is missing; it needs {', '.join(required)}"
                )
        return cls(value, where)

    def fail(self, key: str, right: str) -> UserError:
        """The error that `key` is not as `right` says."""
        value = shown(self.values[key])
        return UserError(f"{self.where}: '{key}' has to be {right}, but is {value}")

    def integer(self, key: str, low: int, high: int, unit: str = "") -> int:
        """A whole number within bounds; ``20e9`` is one, too."""
        return whole(self.values[key], f"{self.where}: '{key}'", low, high, unit)

    def boolean(self, key: str, default: bool) -> bool:
        """``true`` or ``false``."""
        if key in self.values and not isinstance(self.values[key], bool):
            raise self.fail(key, "true or false")
        return bool(self.values.get(key, default))

    def text(self, key: str, default: str = "") -> str:
        """A line of text."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or not value.isprintable() or len(value) > 1000:
            raise self.fail(key, "a line of text of at most 1000 characters")
        return value

    def items(self, key: str) -> list[Any]:
        """A list; empty without the key."""
        value = self.values.get(key, [])
        if not isinstance(value, list):
            raise self.fail(key, "a list")
        return value

    def entries(self, key: str) -> dict[str, Any]:
        """An object whose keys are names that the file chose."""
        value = self.values[key]
        if not isinstance(value, dict) or not value:
            raise self.fail(key, "an object with at least one entry")
        return value


def whole(value: Any, where: str, low: int, high: int, unit: str = "") -> int:
    """The whole number that a parsed value is; `UserError` otherwise."""
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if type(number) is not int or not low <= number <= high:
        unit = f" of {unit}" if unit else ""
        raise UserError(
            f"{where} has to be a whole number{unit} from {low} to {high:.15g}, but is "
            f"{shown(value)}"
        )
    return number
