"""The native libraries, reached through cffi.

The headers in ``native/include`` are the only text that crosses the boundary. The build has made a
module of what they declare (``cmake/declare.py``).
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import platform
import re
import sys
import sysconfig
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from flexlegion.base.arguments import typed
from flexlegion.base.errors import NativeError, UserError
from flexlegion.base.files import open_file
from flexlegion.process import ranks
from flexlegion.process.ending import handler_kept
from flexlegion.process.together import processes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def _find(name: str) -> Path:
    """A file of the build, beside this package or (editable installs) in site-packages."""
    roots = [Path(__file__).parents[1], Path(sysconfig.get_path("purelib")) / "flexlegion"]
    if override := os.environ.get("FLEXLEGION_NATIVE_ROOT"):
        roots.insert(0, Path(override))
    for root in roots:
        if (root / "lib" / name).exists():
            return root / "lib" / name
    raise UserError(
        f"the native library's file lib/{name} is not installed; "
        "install flexlegion with pip install . (training needs legate there at that time)"
    )


@functools.cache
def _declared() -> Any:
    """What the headers declare."""
    spec = importlib.util.spec_from_file_location("declarations", _find("declarations.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ffi


@functools.cache
def enumeration(name: str) -> dict[str, int]:
    """The enumerators of one of the headers' enumerations, and their numbers, in order.

    Parameters
    ----------
    name
        As the header calls it: "fl_price". Its enumerators lose the prefix, which is "FL_", or with
        the enumeration's name "FL_PRICE_", and are in lower case.
    """
    long = f"{name.upper()}_"
    return {
        enumerator.removeprefix(long).removeprefix("FL_").lower(): number
        for number, enumerator in sorted(_declared().typeof(name).elements.items())
    }


def names(enumeration_name: str, space: str = "_") -> tuple[str, ...]:
    """The enumerators of an `enumeration` of numbers from 0, by number.

    Parameters
    ----------
    enumeration_name
        As the header calls it.
    space
        Between words.
    """
    members = enumeration(enumeration_name)
    assert list(members.values()) == list(range(len(members)))
    return tuple(name.replace("_", space) for name in members)


def layout(struct: str, **renamed: str) -> np.dtype[np.void]:
    """The type of NumPy's rows that are one of the headers' structs of integers.

    Parameters
    ----------
    struct
        As the header calls it.
    **renamed
        Fields that are called otherwise in Python.
    """
    import numpy as np

    ffi = _declared()
    fields = ffi.typeof(struct).fields
    return np.dtype(
        {
            "names": [renamed.get(name, name) for name, _ in fields],
            "formats": [field.type.cname.removesuffix("_t") for _, field in fields],
            "offsets": [field.offset for _, field in fields],
            "itemsize": ffi.sizeof(struct),
        }
    )


class Library:
    """A loaded library; its functions are attributes, and `check` turns failures into errors."""

    def __init__(self, file: str) -> None:
        self.ffi: Any = _declared()
        path = str(_find(file))
        try:
            # RTLD_NODELETE: Legion keeps pointers to our tasks until the process ends.
            flags = os.RTLD_NOW | os.RTLD_NODELETE
            self.lib: Any = self.ffi.dlopen(path, flags)
        except OSError as e:
            raise NativeError(f"{path} cannot be loaded: {e}") from None

    def check(self, result: Any) -> Any:
        """`result`, unless it is a failure (null, or negative).

        Raises
        ------
        UserError
            If the failure is the user's to mend.
        NativeError
            Otherwise.
        """
        failed = result < 0 if isinstance(result, int) else result == self.ffi.NULL
        if failed:
            its = self.ffi.new("fl_error *")
            self.lib.fl_last_error(its)
            message = self.ffi.string(its.message).decode()
            if not its.is_users:
                raise NativeError(message)
            error = UserError(message)
            if its.n_needs:
                from flexlegion.bindings.memory import memory_table

                # Tracebacks and commands show it below.
                error.add_note(memory_table(self.items(its.needs, its.n_needs)))
            raise error
        return result

    def items(self, pointer: Any, count: int) -> list[Any]:
        """What an array holds."""
        items: list[Any] = self.ffi.unpack(pointer, count) if count else []
        return items


class Arrays:
    """Makes arrays for native code, which are there as long as this is."""

    def __init__(self) -> None:
        self._ffi = _declared()
        self._kept: list[Any] = []

    def __call__(self, kind: str, items: Iterable[Any]) -> Any:
        """An array of `items`, which C calls `kind`."""
        self._kept.append(self._ffi.new(f"{kind}[]", list(items)))
        return self._kept[-1]

    def of_numpy(self, kind: str, values: npt.NDArray[Any]) -> Any:
        """An array of integers that NumPy holds; it is copied if it does not lie as C has it."""
        import numpy as np

        values = np.ascontiguousarray(values, kind.removesuffix("_t"))
        self._kept.append(values)
        return self._ffi.cast(f"{kind} *", values.ctypes.data)

    def text(self, text: str) -> Any:
        """A ``char *``."""
        self._kept.append(self._ffi.new("char[]", text.encode()))
        return self._kept[-1]

    def texts(self, texts: Iterable[str]) -> Any:
        """A ``char **``."""
        return self("char *", [self.text(text) for text in texts])

    def attributes(self, attributes: Mapping[str, str]) -> dict[str, Any]:
        """The header's ``fl_attributes``."""
        return {
            "n": len(attributes),
            "names": self.texts(attributes),
            "values": self.texts(attributes.values()),
        }


@functools.cache
def core() -> Library:
    """libflexlegion_core: the plan."""
    return Library("libflexlegion_core.so")


@typed
def library_folder() -> Path:
    """The folder of ``libflexlegion_rt.so``, to link libraries of kernels with."""
    return _find("libflexlegion_rt.so").parent


# Libraries of kernels that users wrote; the runtime loads them before it starts.
_kernels: dict[str, None] = {}


@typed
def load_kernels(path: str | Path) -> None:
    """Have training know the kernels of a library, for operators of your own.

    The library is loaded when training starts. It is a shared library, linked with
    ``libflexlegion_rt.so``, whose kernels register themselves; ``docs/adding-an-operator.md`` shows
    one. Searching and simulating need no kernels.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    UserError
        If there is no such file, or training has started already.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise UserError(f"{path}: no such library of kernels")
    with open_file(file) as opened:
        if opened.read(4) != b"\x7fELF":
            raise UserError(f"{path}: no shared library; give the .so that a compiler has written")
    if rt.cache_info().currsize and str(file) not in _kernels:
        raise UserError(
            f"{path}: kernels are known to training if they are loaded before the first model is "
            "compiled"
        )
    _kernels[str(file)] = None


def _open_kernels() -> None:
    for file in _kernels:
        try:
            ctypes.CDLL(file, mode=os.RTLD_NOW | os.RTLD_NODELETE)
        except OSError as e:
            raise UserError(
                f"{file}: this library of kernels cannot be loaded ({e}); link it with "
                "libflexlegion_rt.so"
            ) from None


def _share_cores() -> None:
    """Have Realm's network thread give its core away while it waits (native/net/yield.cc).

    It has no effect where legate was imported before: symbols of Realm's are bound by then.
    """
    ctypes.CDLL(str(_find("libflexlegion_yield.so")), mode=os.RTLD_NOW | os.RTLD_GLOBAL)


_started: tuple[Library, Any] | None = None
_threads: list[int] = []  # of each device, on all ranks
_hosts: list[int] = []  # likewise


@functools.cache
def rt() -> Library:
    """libflexlegion_rt: the runtime. Starts Legion through Legate if it is not running.

    Raises
    ------
    UserError
        If legate is not installed, or cannot start.
    NativeError
        If the libraries cannot be loaded.
    """
    commanded = "LEGATE_CONFIG" in os.environ
    ranks.prepare()
    if processes() > 1:
        _take_others_along()
    _share_cores()
    try:
        with handler_kept():
            from legate.core import get_legate_runtime

            get_legate_runtime()
    except ImportError as e:
        raise UserError(
            f"training needs the legate package, which cannot be imported: {e}"
        ) from None
    except RuntimeError as e:
        # Legate's message is a page; its causes are numbered, the first being the innermost.
        cause = re.search(r"#0 [\w:]+: (.*)", str(e))
        asked = os.environ["LEGATE_CONFIG"].strip()
        lacks = "which this machine may lack"
        if not ranks.visible_gpus() and re.search(r"--gpus[ =][1-9]", asked):
            lacks = "but there is no GPU that this process can use; leave out --gpus, or give 0"
        raise UserError(
            f"Legion cannot start ({cause[1] if cause else e}); legate was asked for '{asked}', "
            f"{lacks}"
        ) from None
    library = Library("libflexlegion_rt.so")
    _open_kernels()
    facts = library.ffi.new("fl_running *")
    threads, cores = ranks.threads(), ranks.cores()
    if not commanded:  # what was chosen is not meant for the processes that this one starts
        del os.environ["LEGATE_CONFIG"]
    least = ranks.worth_sharing()
    library.check(library.lib.fl_rt_start(len(threads), threads, len(cores), cores, least, facts))
    global _started
    _started = library, facts
    ranks.check_together(facts.ranks)
    devices = library.items(facts.devices, facts.n_devices)
    mine = [device.threads for device in devices]
    ranks.warn_of_few_cores(mine, len(cores))
    host = zlib.crc32(platform.node().encode()) >> 1
    hosts = [host if device.rank == facts.rank else 0 for device in devices]
    for found, own in ((_threads, mine), (_hosts, hosts)):
        found[:] = own if facts.ranks == 1 else _gathered(library, own, facts.ranks)
    return library


def _gathered(library: Library, numbers: list[int], ranks: int) -> list[int]:
    """Of each device, as its rank knows them; the others say 0."""
    mine = library.ffi.new("int32_t[]", numbers)
    everything = library.ffi.new("int32_t[]", len(numbers) * ranks)
    size = library.ffi.sizeof(mine)
    library.check(library.lib.fl_rt_all_gather(mine, size, everything))
    told = list(everything)  # cffi's arrays know no steps
    return [max(told[i :: len(numbers)]) for i in range(len(numbers))]


def threads() -> list[int]:
    """How many threads compute a task on each device of the running Legion."""
    rt()
    return list(_threads)


def hosts() -> list[int]:
    """A number for the machine that each device of the running Legion is in."""
    rt()
    return list(_hosts)


@typed
def set_threads(threads: int | Sequence[int], worth_sharing: int = ranks.WORTH_SHARING) -> None:
    """Have more than one thread compute a task on CPU processors.

    A processor of several threads is one device, with one tile of each tensor: there are fewer
    devices, which have more to do each, and fewer weights' copies to keep equal. By default a
    processor has one thread, but on a machine of more than 16 cores its share of them.

    Parameters
    ----------
    threads
        Of each CPU processor of a rank; or one number for all of them.
    worth_sharing
        Tasks of fewer elements are computed by one thread.

    Raises
    ------
    UserError
        If a number is out of range, or Legion runs already.
    """
    numbers = [threads] if isinstance(threads, int) else list(threads)
    ranks.choose_threads(numbers, worth_sharing, running=bool(rt.cache_info().currsize))


def running() -> Any:
    """The header's ``fl_running``: ranks and devices of the running Legion."""
    rt()
    assert _started is not None
    return _started[1]


def leave(status: int) -> NoReturn:
    """End the process at once, and the other ranks with it.

    At its usual end, a rank waits for the others, which may wait for what this one was to do.

    Parameters
    ----------
    status
        The exit status; not 0.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if _started is not None:
        _started[0].lib.fl_rt_leave(status)
    os._exit(status)  # mpirun ends the others


def _take_others_along() -> None:
    """Have an exception that nobody catches end the other ranks, too."""
    report = sys.excepthook

    def report_and_leave(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        report(kind, error, trace)
        leave(130 if issubclass(kind, KeyboardInterrupt) else 1)

    sys.excepthook = report_and_leave
