"""What a user's code depends on while it runs: files, folders, variables of the environment.

Python announces what it opens to audit hooks, and every look at `os.environ` passes its class. So
what is recorded is what was read, by the user's code and by the libraries that it calls. What
cannot be looked at again later (a network, another program) is recorded as a reason not to keep
what the code has made. Installed packages are not looked at file by file: `surroundings` has the
versions of all of them.

Not seen are files that native code opens by itself. Of these, safetensors' are announced here.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pkgutil
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import source_from_cache
from pathlib import Path
from types import FrameType
from typing import Any

from flexlegion.base.files import open_file
from flexlegion.base.users_code import is_users

_PACKAGE = Path(__file__).parents[2]
_SYSTEM = ("/proc/", "/sys/", "/dev/")  # the running machine's; `surroundings` names the machine
_WRITES = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_LISTS = ("os.listdir", "os.scandir")
# Events after which nobody can tell whether the same would happen again.
_UNREPEATABLE = {
    "socket.connect": "it used a network",
    "socket.getaddrinfo": "it used a network",
    "socket.gethostbyname": "it used a network",
    "socket.sendto": "it used a network",
    "subprocess.Popen": "it started another program",
    "os.system": "it started another program",
    "os.posix_spawn": "it started another program",
    "os.fork": "it started another process",
    "sqlite3.connect": "it opened a data base",
}
_DISTRIBUTIONS = (".dist-info", ".egg-info", ".egg-link", ".pth")
_MODULES = (".py", ".so", ".pyd")
_LARGE = 256 << 20  # bytes, of weights most likely; from here on, reading it would take seconds
# Python's own code that looks for modules and distributions in all of its path.
_IMPORTERS = ("<frozen importlib", os.path.dirname(importlib.__file__), pkgutil.__file__)
# Of the shell, which change from command to command; the folder is among the `surroundings`.
_BOOKKEEPING = ("_", "OLDPWD", "PWD", "SHLVL")
_OF_ALL = ("__iter__", "copy")  # what reads all variables, and says so before
# A file's time is that of the system's clock at its last tick, which may be 10 ms ago.
_TICK_NS = 20_000_000


class Reads:
    """What was read since the first `recorded`.

    There is one in a process (`READS`): modules are loaded once, so what they have read counts for
    all that is made of them later.
    """

    def __init__(self) -> None:
        self.reason = ""  # why nothing may be kept
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._variables: set[str] = set()
        self._all_variables = False
        self._written: set[str] = set()  # by this process, before it read them
        self._environment: dict[str, str] = {}
        self._began_ns = 0
        self._depth = 0

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Meanwhile, record what is read."""
        if self._began_ns == 0:
            self._began_ns = time.time_ns() - _TICK_NS
            self._environment = dict(os.environ)
            sys.addaudithook(self._event)
            _announce_safetensors()
        self._depth += 1
        try:
            with _environment_watched(self._variable, self._every_variable):
                yield
        finally:
            self._depth -= 1

    @property
    def recording(self) -> bool:
        """Whether what is read now is recorded."""
        return self._depth > 0

    def document(self) -> dict[str, Any]:
        """All that was read, with what it was, for `unchanged`; see `reason`, too."""
        modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        # Some libraries give modules that they make names of files that are none.
        self._files.update(f for f in modules if f and os.path.isabs(f) and _counts(f))
        files = {path: _content(path) for path in sorted(self._files - self._written)}
        for path in files:
            with suppress(OSError):
                state = os.stat(path)
                if max(state.st_mtime_ns, state.st_ctime_ns) > self._began_ns:
                    self.reason = self.reason or f"{path} changed meanwhile"
        folders = {path: _listing(path) for path in sorted(self._folders)}
        importable = {path: _importable(path) for path in sorted(_import_folders(self._files))}
        variables: dict[str, str | None] = {
            name: _digest_of_variable(name, self._environment.get(name))
            for name in sorted(self._variables)
        }
        return {
            "files": files,
            "folders": folders,
            "importable": importable,
            "variables": variables,
            "environment": _all_of(self._environment) if self._all_variables else None,
        }

    def _variable(self, name: str) -> None:
        if name not in _BOOKKEEPING:
            self._variables.add(name)

    def _every_variable(self) -> None:
        # At its import, a library looks for the variables that begin with its own name.
        self._all_variables |= not _in_import_of_library(sys._getframe(2))

    def _event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.recording:
            return
        if event == "open":
            self._opened(arguments[0], arguments[2])
        elif event in _LISTS:
            self._listed(arguments[0])
        elif event == "import" and isinstance(arguments[1], str):
            self._read(arguments[1])  # an extension module
        elif event in _UNREPEATABLE and not _in_import_of_library(sys._getframe(1)):
            self.reason = self.reason or _UNREPEATABLE[event]

    def _opened(self, path: Any, flags: int) -> None:
        if isinstance(path, int) or not (path := _absolute(path)):
            return
        if flags & _WRITES:
            if path not in self._files:
                self._written.add(path)
        elif path.endswith(".pyc"):
            with suppress(ValueError):
                self._read(source_from_cache(path))
        else:
            self._read(path)

    def _read(self, path: str) -> None:
        if _counts(path):
            self._files.add(path)

    def _listed(self, path: Any) -> None:
        caller = sys._getframe(2).f_code.co_filename
        if isinstance(path, int) or caller.startswith(_IMPORTERS):
            return  # `surroundings` and `_importable` say what there is to be imported
        if (folder := _absolute("." if path is None else path)) and _counts(folder):
            self._folders.add(folder)


READS = Reads()


def unchanged(document: dict[str, Any]) -> bool:
    """Whether all that `Reads.document` says was read is still the same."""
    environment = document["environment"]
    return (
        (environment is None or environment == _all_of(os.environ))
        and all(
            _digest_of_variable(name, os.environ.get(name)) == digest
            for name, digest in document["variables"].items()
        )
        and _same(document["importable"], _importable)
        and _same(document["folders"], _listing)
        and _same(document["files"], _content)
    )


def surroundings() -> dict[str, Any]:
    """What else decides what a user's code makes: Python, all packages, flexlegion, the machine."""
    installed = {
        name
        for folder in sys.path
        for name in _names(folder or ".")
        if name.endswith(_DISTRIBUTIONS)
    }
    return {
        "python": sys.version,
        "path": sys.path,
        "installed": _digest(sorted(installed)),
        "flexlegion": _sources(),
        "machine": [platform.machine(), platform.node()],
        "gpus": [name for name in _names("/dev") if name.startswith("nvidia")],
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "folder": os.getcwd(),
    }


@cache
def _sources() -> str:
    """A digest of flexlegion's own code."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(_PACKAGE)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _counts(path: str) -> bool:
    """Whether what a path holds is looked at again: it is neither installed nor the system's."""
    return is_users(path) and not path.startswith(_SYSTEM) and "__pycache__" not in path


def _absolute(path: Any) -> str:
    """A path that stays the same when the process goes elsewhere; empty if it is none."""
    try:
        return os.path.abspath(os.fsdecode(path))
    except (TypeError, ValueError):
        return ""


def _in_import_of_library(frame: FrameType | None) -> bool:
    """Whether a library does something because it is imported, which its version decides."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib"):
            return True
        if is_users(name):
            return False
        frame = frame.f_back
    return False


def _import_folders(files: Iterable[str]) -> set[str]:
    """Folders of the user's in which imports are looked up."""
    folders = {os.path.dirname(path) for path in files if path.endswith(_MODULES)}
    return folders | {path for path in map(_absolute, sys.path) if path and _counts(path)}


def _same(recorded: dict[str, str | None], now: Callable[[str], str | None]) -> bool:
    return all(now(path) == digest for path, digest in recorded.items())


def _content(path: str) -> str | None:
    """A digest of a file's content, of a large one its state; None: there is no such file."""
    try:
        with open_file(path) as file:
            state = os.fstat(file.fileno())
            if state.st_size > _LARGE:
                return f"{state.st_ino} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}"
            digest = hashlib.sha256()
            while part := file.read(1 << 20):
                digest.update(part)
            return digest.hexdigest()
    except OSError:
        return None


def _listing(path: str) -> str:
    return _digest(_names(path))


def _importable(path: str) -> str:
    """A digest of the modules and packages in a folder."""
    return _digest(
        name
        for name in _names(path)
        if name.endswith(_MODULES) or os.path.exists(os.path.join(path, name, "__init__.py"))
    )


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _digest(names: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()


def _digest_of_variable(name: str, value: str | None) -> str | None:
    """Values may be secrets, of which a file should have no more than a digest."""
    return None if value is None else _digest([name, value])


def _all_of(environment: Mapping[str, str]) -> str:
    return _digest(
        f"{name}={value}" for name, value in sorted(environment.items()) if name not in _BOOKKEEPING
    )


@contextmanager
def _environment_watched(one: Callable[[str], None], every: Callable[[], None]) -> Iterator[None]:
    """Meanwhile, say which variables are asked for, or that all are."""
    its: Any = type(os.environ)
    get, names = its.__getitem__, its.__iter__

    def watched_get(environ: Any, key: Any) -> Any:
        if isinstance(key, str | bytes) and sys._getframe(1).f_code.co_name not in _OF_ALL:
            one(os.fsdecode(key))
        return get(environ, key)

    def watched_names(environ: Any) -> Any:
        every()
        return names(environ)

    its.__getitem__, its.__iter__ = watched_get, watched_names
    try:
        yield
    finally:
        its.__getitem__, its.__iter__ = get, names


def _announce_safetensors() -> None:
    """Have safetensors announce the files that it opens, as Python does its own."""
    import safetensors

    its: Any = safetensors
    opens = its.safe_open

    def announced(filename: Any, *arguments: Any, **more: Any) -> Any:
        sys.audit("open", os.fspath(filename), "rb", os.O_RDONLY)
        return opens(filename, *arguments, **more)

    its.safe_open = announced
