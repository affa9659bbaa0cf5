"""Documents: JSON files that people write are read.

A fault becomes one sentence that names its place.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.base.files import open_file, read_at_most
from flexlegion.base.quoting import shown

# Far more than any such file has.
MAX_BYTES = 64 << 20
# Each may take 250 bytes of memory when it is parsed, although `[]` takes two in the file.
MAX_VALUES = 4_000_000


def read_json(path: str | Path, kind: str, missing: str, like: str) -> Any:
    """The parsed content of a JSON file.

    Parameters
    ----------
    path
        The file; ``/dev/stdin`` and the shell's ``<(...)`` will do, too.
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
        with open_file(path, connected=True) as file:
            content = read_at_most(file, MAX_BYTES)
        text = None if content is None else content.decode("utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such {kind} file; {missing}") from None
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not text"
        raise UserError(
            f"{path}: cannot be read as a {kind} file ({reason}); give a JSON file {like}"
        ) from None
    if text is None:
        raise UserError(
            f"{path}: too large for a {kind} file, which has at most {MAX_BYTES >> 20} MiB; give a "
            f"JSON file {like}"
        )
    del content
    if sum(map(text.count, ",[{")) > MAX_VALUES:
        raise UserError(
            f"{path}: too large for a {kind} file, which has at most {MAX_VALUES:,} values; give a "
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

    def number(self, key: str, high: float) -> float:
        """A number above 0 and at most `high`."""
        value = self.values[key]
        if type(value) not in (int, float) or not 0 < value <= high:
            raise self.fail(key, f"a number above 0 and at most {high:g}")
        return float(value)

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
