"""This process as one rank of a run: what it needs before Legion starts in it.

Whoever starts several processes, as mpirun and srun do, says in the environment which of them this
is. So all of this holds where the legate command was given by hand, too; what its options and the
environment say already stays.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from flexlegion.base.errors import UserError
from flexlegion.base.memory import memory_bytes
from flexlegion.base.quoting import warn
from flexlegion.console.text import count
from flexlegion.process.together import HERE, RANKS, RANKS_EACH, first_number, processes, rank

T = TypeVar("T")

# Of the processors that a rank takes unless it is told: more are better chosen by somebody.
MOST_CPUS = 16
MOST_LEGION_CPUS = 63  # with more, Realm ends at start in a backtrace
MOST_THREADS = 1024  # of a processor: more than any machine has cores
# Legate's default. Legion's locks spin, so that on one core, to which Realm binds them where it is
# the last one, two such threads take three to five times as long as one does.
_LEGATES_UTILITIES = 2
WORTH_SHARING = 1 << 14  # elements: a thread takes some microseconds to begin
_MEMORY_SHARE = 0.8  # of a machine's, as Legate takes where one rank runs
_CPUS = Path("/sys/devices/system/cpu")
_GPUS = Path("/proc/driver/nvidia/gpus")  # a folder for each


class _Chosen:
    """What `set_threads` was told."""

    threads: list[int] | None = None
    worth_sharing = WORTH_SHARING


def prepare() -> None:
    """Take this rank's share of the machine, and choose Legate's, Legion's and UCX's settings.

    It has no effect where legate was imported before.
    """
    if processes() > 1:
        _take_share()
        _set_legion("-ll:bgwork", "1")  # such threads poll the network without end: one is enough
    else:
        _take_all()
    # That a processor has no core by itself, which `_take_share` says better; and where there is no
    # GPU, that there is none, which is an error to Realm.
    _set_legion("-level", "threads=5" if visible_gpus() else "threads=5,gpu=6")
    if not any(name.startswith("UCX_") for name in os.environ):
        # Legate sets a variable that only UCX's part for GPUs knows. A user's own mistake is told.
        os.environ["UCX_WARN_UNUSED_ENV_VARS"] = "n"
    # Where the buffers come from through which large transfers go: huge pages, which makes AlexNet
    # on two ranks 5 % faster.
    os.environ.setdefault("UCX_ALLOC_PRIO", "thp,mmap,heap")


def check_together(ranks: int) -> None:
    """That the processes that were started together run as the ranks of one Legion.

    Raises
    ------
    UserError
        If they do not, as where Legate has no network module.
    """
    if ranks != processes():
        raise UserError(
            f"this is one of {processes()} processes that were started together, but Legion runs "
            f"with {count(ranks, 'rank')}; start them by flexlegion's --ranks, or by legate's "
            "--launcher"
        )


def default_cpus(cores: int, gpus: int, alone: bool) -> int:
    """How many CPU processors a rank takes, of the threads that `set_threads` was told.

    Parameters
    ----------
    cores
        Those of the rank.
    gpus
        GPUs of the rank.
    alone
        Whether it is the only one. Others leave a core, if they have several, to the threads that
        run Legion and the network.
    """
    chosen = _Chosen.threads or [1]
    if len(chosen) > 1:
        return len(chosen)
    if gpus > 0:
        return 1
    if chosen[0] > 1:
        return max(1, cores // chosen[0])
    if cores > MOST_CPUS:
        return numa_nodes()
    return cores if alone or cores <= 2 else cores - 1


def choose_threads(threads: Sequence[int], worth_sharing: int, running: bool) -> None:
    """What `flexlegion.set_threads` does.

    Raises
    ------
    UserError
        If a number is out of range, or others were chosen and Legion is running.
    """
    numbers = list(threads)
    if not numbers or not all(1 <= number <= MOST_THREADS for number in numbers):
        raise UserError(
            f"a processor has 1 to {MOST_THREADS} threads, not {', '.join(map(str, numbers))}"
        )
    if running and (numbers, worth_sharing) != (_Chosen.threads, _Chosen.worth_sharing):
        raise UserError("processors get their threads before the first model is compiled")
    _Chosen.threads, _Chosen.worth_sharing = numbers, worth_sharing


def threads() -> list[int]:
    """How many threads compute a task: of each CPU processor of this rank, or one for all.

    0 stands for as many as Legion gives it: Legate's groups of OpenMP threads.
    """
    if _Chosen.threads:
        return _Chosen.threads
    if _legates("--omps"):
        return [0]
    number = len(os.sched_getaffinity(0))
    if number <= MOST_CPUS or _legates("--gpus"):
        return [1]
    # A core is left to the threads that run Legion.
    return [max(1, (number - 1) // (_legates("--cpus") or 1))]


def warn_of_few_cores(threads: Sequence[int], cores: int) -> None:
    """Say it if the threads of this rank's processors have to take turns.

    Parameters
    ----------
    threads
        Of each device; 0 of those of other ranks.
    cores
        How many this rank has.
    """
    if max(threads) > 1 and sum(threads) > cores:
        there = count(cores, "core")
        warn(f"{sum(threads)} threads on {there}: they take turns")


def worth_sharing() -> int:
    """Of how many elements a task is at least that the threads of a processor share."""
    return _Chosen.worth_sharing


def numa_nodes() -> int:
    """On how many NUMA nodes the CPUs lie that this process may use."""
    folders = {
        node.name
        for cpu in os.sched_getaffinity(0)
        for node in (_CPUS / f"cpu{cpu}").glob("node[0-9]*")
    }
    return max(1, len(folders))


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES calls them."""
    there = [str(i) for i, _ in enumerate(_GPUS.iterdir())] if _GPUS.is_dir() else []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return there
    return [name for name in chosen.split(",") if name.strip() not in ("", "-1")][: len(there)]


def cores() -> list[int]:
    """The CPUs that this process may use, those next to each other that share most."""

    def place(cpu: int) -> tuple[int, ...]:
        topology = _CPUS / f"cpu{cpu}" / "topology"
        try:
            package, core = (
                int((topology / name).read_text()) for name in ("physical_package_id", "core_id")
            )
        except OSError:  # not told
            return (0, cpu, cpu)
        return (package, core, cpu)

    return sorted(os.sched_getaffinity(0), key=place)


def share_of(things: Sequence[T], index: int, number: int) -> Sequence[T]:
    """Which of some things, such as cores, one of so many ranks gets.

    With more ranks than things, several get the same one: on two cores, three and four ranks train
    LeNet at 0.7 to 0.8 times the speed of two, and at 0.6 where they may run on both.
    """
    if not things:
        return things
    first, end = (i * len(things) // number for i in (index, index + 1))
    return things[first : max(end, first + 1)]


def _take_all() -> None:
    """Choose the processors of the only rank, and how many threads run Legion beside them."""
    number = len(os.sched_getaffinity(0))
    gpus = _set_legate("--gpus", len(visible_gpus()))
    groups = _legates("--omps") or 0  # of OpenMP threads, which are to have the cores
    cpus = _set_legate("--cpus", 1 if groups else default_cpus(number, gpus, alone=True))
    each = threads()
    busy = gpus + groups * (_legates("--ompthreads") or 1)
    if not groups:
        busy += sum(each) if len(each) > 1 else each[0] * cpus
    if number - busy < _LEGATES_UTILITIES:
        _set_legate("--utility", 1)


def _take_share() -> None:
    """Share cores, GPUs and memory with the ranks beside this one; say it if cores are too few."""
    here, index = first_number(HERE, 1), int(os.environ.get("LEGATE_LOCAL_RANK", 0))
    all_cores, gpus = cores(), visible_gpus()
    mine = all_cores
    if here > 1 and (RANKS in os.environ or not _bound()):
        mine = list(share_of(all_cores, index, here))
        os.sched_setaffinity(0, mine)
    if here > 1 and gpus and (RANKS in os.environ or "CUDA_VISIBLE_DEVICES" not in os.environ):
        gpus = list(share_of(gpus, index, here))
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    used_gpus = _set_legate("--gpus", len(gpus))
    cpus = _set_legate("--cpus", default_cpus(len(mine), used_gpus, alone=False))
    _set_legate("--utility", 1)  # a second one only takes time from the network's thread
    _set_legate(
        "--sysmem",
        int(_MEMORY_SHARE * memory_bytes()) // first_number((RANKS_EACH, *HERE), 1) >> 20,
    )
    wanted = here * (cpus + used_gpus + 1)
    if rank() == 0 and wanted > len(all_cores):
        who, there = count(here, "rank"), count(len(all_cores), "core")
        warn(
            f"{who} on {there}, where {wanted} would be needed (one for each processor, and one a "
            "rank for the threads of Legion and the network): threads take turns"
        )


def _set_legate(option: str, value: int) -> int:
    """Choose the value of an option of legate, unless it is given; what holds then."""
    given = _legates(option)
    if given is not None:
        return given
    os.environ["LEGATE_CONFIG"] = f"{os.environ.get('LEGATE_CONFIG', '')} {option} {value}"
    return value


def _legates(option: str) -> int | None:
    """The number that legate was given for an option."""
    given = re.findall(rf"{option}[ =]+(\d+)", os.environ.get("LEGATE_CONFIG", ""))
    return int(given[-1]) if given else None


def _set_legion(option: str, value: str) -> None:
    """Choose the value of an option of Legion, unless it is given."""
    given = os.environ.get("LEGION_DEFAULT_ARGS", "").split()
    if option not in given:
        os.environ["LEGION_DEFAULT_ARGS"] = " ".join([*given, option, value])


def _bound() -> bool:
    """Whether somebody has given this process some of the machine's cores already."""
    return len(os.sched_getaffinity(0)) < (os.cpu_count() or 1)
