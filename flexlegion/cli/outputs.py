"""Files that a command writes: whether it can, and keeps what it has, is known before it works."""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Callable, Iterator

from flexlegion.base.errors import UserError
from flexlegion.base.files import check_weights_name, check_writable


class Output(str):
    """The path of a file to write, as an option gave it.

    Attributes
    ----------
    kind
        What the file is to be, for messages: "strategy".
    """

    kind: str


def output(kind: str) -> Callable[[str], Output]:
    """The type of an option that names a file to write; `check_outputs` finds it by that."""

    def parse(text: str) -> Output:
        path = Output(text)
        path.kind = kind
        return path

    return parse


def check_given(args: argparse.Namespace) -> None:
    """Raise `UserError` if an option was given an empty text, as of a shell's unset variable."""
    words = getattr(args, "arguments", [])
    for word, following in zip(words, [*words[1:], None], strict=True):
        option, equals, value = word.partition("=")
        if option.startswith("--") and (value if equals else following) == "":
            raise UserError(f"{option} is given an empty text; give a value, or leave it out")


def check_outputs(args: argparse.Namespace) -> None:
    """Raise `UserError` if a file that the options name cannot be written, or would be lost.

    Two outputs must not be one file, whatever links lead there, and no output one of the files that
    the command reads.

    Parameters
    ----------
    args
        Of any command; `Output` values are files that it writes.
    """
    taken: dict[object, str] = {}
    for name, path in _named(args, Output):
        assert isinstance(path, Output)
        if not path:
            raise UserError(f"{name}: the name of the file is empty; give one")
        if path.kind == "weights":
            check_weights_name(path)
        check_writable(path, path.kind)
        for key in _keys(path):
            if taken.setdefault(key, name) != name:
                raise UserError(
                    f"{taken[key]} and {name} are the same file, {path}, which would have "
                    "what is written last alone; give two names"
                )
    for name, text in _named(args, str):
        if isinstance(text, Output) or name == "--hosts":
            continue
        for path in text.split(","):
            file = path.partition(":")[0] if name == "--model" else path
            if not _is_path(file):
                continue
            for key in _keys(file):
                if key in taken:
                    raise UserError(
                        f"{name} and {taken[key]} are the same file, {file}, which would be read "
                        "and then replaced; give the output another name"
                    )


def _named(args: argparse.Namespace, kind: type[str]) -> Iterator[tuple[str, str]]:
    """Options and their texts of that kind, lists of them as well."""
    for dest, value in vars(args).items():
        if dest in ("arguments", "command", "action"):
            continue
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, kind):
                yield f"--{dest.replace('_', '-')}", text


def _is_path(text: str) -> bool:
    """Whether an option's text is a file's path, and not a name of a network or a strategy."""
    return ("/" in text or "." in text) and os.path.isfile(text)


def _keys(path: str) -> Iterator[object]:
    """What two paths have in common exactly if they are one file; nothing of devices and pipes."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        yield os.path.realpath(path)
        return
    if stat.S_ISREG(status.st_mode):
        yield status.st_dev, status.st_ino
