"""Commands that train: they run under legate, and start it where they do not."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import NoReturn

import flexlegion
from flexlegion.errors import UserError
from flexlegion.tools.ranks import chosen_ranks, launcher_options, sysmem

# Of the processors that a command takes unless it is told: more are better chosen by somebody.
MOST_CPUS = 16
_GPUS = Path("/proc/driver/nvidia/gpus")  # a folder for each
# In the environment of what this command starts: that its options have been obeyed.
_STARTED = "FLEXLEGION_STARTED"
# Legion's: the network's thread spins, and there need not be more of its kind.
_LEGION = "-ll:bgwork 1"


def add_launch_options(parser: argparse.ArgumentParser) -> None:
    """``--ranks``, ``--hosts``, ``--cpus``, ``--gpus``, ``--legate``."""
    group = parser.add_argument_group("where to train, unless the legate command runs already")
    ranks = group.add_mutually_exclusive_group()
    ranks.add_argument("--ranks", type=int, help="processes on this machine; default: 1")
    ranks.add_argument(
        "--hosts",
        metavar="FILE",
        help="the machines to train on, and how many processes each runs: lines 'name slots=N'",
    )
    group.add_argument(
        "--cpus",
        type=int,
        help="CPU processors of each rank; default: as many as it has cores, up to "
        f"{MOST_CPUS}, but 1 beside GPUs",
    )
    group.add_argument(
        "--gpus", type=int, help="GPUs of each rank; default: its share of the machine's"
    )
    group.add_argument(
        "--legate",
        default="",
        metavar="OPTIONS",
        help="more options of legate, as in --legate '--fbmem 40000'",
    )


def under_legate() -> bool:
    """Whether this process was started by the legate command."""
    return "LEGATE_CONFIG" in os.environ


def go_under_legate(args: argparse.Namespace) -> None:
    """Under legate, go on; elsewhere, become a legate that runs this command.

    It takes the place of this process, so signals reach it, and its exit status is this command's.

    Parameters
    ----------
    args
        With the options of `add_launch_options`, and all `arguments` of the command line.

    Raises
    ------
    UserError
        If legate is not installed, the numbers of ranks or processors make no sense, or legate runs
        already and would not obey them.
    """
    if not under_legate():
        _become_legate(args)
    if _STARTED in os.environ:
        return
    for option in ("ranks", "hosts", "cpus", "gpus", "legate"):
        if getattr(args, option):
            raise UserError(
                f"--{option} says how to start legate, which runs already; give its own options to "
                "the legate command, or start this by the flexlegion command"
            )


def _become_legate(args: argparse.Namespace) -> NoReturn:
    ranks = chosen_ranks(args.ranks, args.hosts)
    gpus = _visible_gpus() // ranks.each if args.gpus is None else args.gpus
    cores = max(1, len(os.sched_getaffinity(0)) // ranks.each)
    cpus = args.cpus
    if cpus is None:
        cpus = 1 if gpus > 0 else min(cores, MOST_CPUS)
    if cpus < 0 or gpus < 0 or cpus + gpus == 0:
        raise UserError(f"--cpus {cpus} and --gpus {gpus} leave no processor to train on")
    binaries = Path(sys.executable).parent
    legate = binaries / "legate"
    if not legate.exists():
        raise UserError(
            f"this command trains, for which it needs legate, but {legate} does not exist; install "
            "the package legate beside this Python"
        )
    command = [str(legate), "--nodes", str(ranks.machines), "--ranks-per-node", str(ranks.each)]
    command += ["--cpus", str(cpus), "--gpus", str(gpus)]
    if cpus >= cores:  # Legate's second utility processor would only take time from them
        command += ["--utility", "1"]
    if ranks.number > 1:
        command += ["--sysmem", str(sysmem(ranks)), *launcher_options(ranks, [_STARTED])]
    try:
        command += shlex.split(args.legate)
    except ValueError as e:
        raise UserError(f"--legate '{args.legate}' cannot be read: {e}") from None
    package = Path(flexlegion.__file__).parent
    command += [str(package / "__main__.py"), *args.arguments]
    # Legate starts the first python on the path, which knows nothing of this one's folders.
    environment = os.environ | {
        "PATH": _joined(binaries, os.environ.get("PATH", os.defpath)),
        "PYTHONPATH": _joined(package.parent, os.environ.get("PYTHONPATH", "")),
        _STARTED: "1",
    }
    if ranks.number > 1:
        environment["LEGION_DEFAULT_ARGS"] = (
            f"{_LEGION} {os.environ.get('LEGION_DEFAULT_ARGS', '')}"
        )
        if os.geteuid() == 0:  # mpirun asks twice
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(legate, command, environment)


def interruptible() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again; to be called once Legion runs.

    Its own handler prints a backtrace of native code, and aborts.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def leave(status: int) -> NoReturn:
    """End the process with an exit status.

    After a failure under legate, at once: it would go on to its own shutdown, which on several
    ranks waits for the others.
    """
    if status != 0 and under_legate():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _visible_gpus() -> int:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = len(list(_GPUS.iterdir())) if _GPUS.is_dir() else 0
    if chosen is None:
        return there
    return min(there, len([name for name in chosen.split(",") if name.strip() not in ("", "-1")]))


def _joined(first: Path, others: str) -> str:
    return os.pathsep.join(filter(None, (str(first), others)))
