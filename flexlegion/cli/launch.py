"""Commands that run models: they run under legate, and start it where they do not."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import sysconfig
from pathlib import Path
from typing import NoReturn

import flexlegion
from flexlegion.base.errors import UserError
from flexlegion.base.phase import phase
from flexlegion.bindings.native import set_threads
from flexlegion.cli.ranks import chosen_ranks, launcher_options
from flexlegion.cli.started import stay_with
from flexlegion.process.ending import raise_on_signals
from flexlegion.process.ranks import MOST_CPUS, MOST_LEGION_CPUS, visible_gpus
from flexlegion.process.together import RANKS


def add_launch_options(parser: argparse.ArgumentParser) -> None:
    """``--ranks``, ``--hosts``, ``--cpus``, ``--gpus``, ``--legate``."""
    group = parser.add_argument_group("where to run, unless the legate command runs already")
    ranks = group.add_mutually_exclusive_group()
    ranks.add_argument(
        "--ranks",
        type=int,
        help="processes on this machine, or on those of Slurm's job; default: 1",
    )
    ranks.add_argument(
        "--hosts",
        metavar="FILE",
        help="the machines to run on, and how many processes each runs: lines 'name slots=N'",
    )
    group.add_argument(
        "--cpus",
        type=int,
        help="CPU processors of each rank; default: as many as it has cores, less one for other "
        f"threads if there are several ranks and cores; with more than {MOST_CPUS} cores, one a "
        "NUMA node; 1 beside GPUs",
    )
    group.add_argument(
        "--threads",
        metavar="N[,N...]",
        help="threads that compute a task on a CPU processor, the same for all or one number each; "
        f"default: 1, or a processor's share of more than {MOST_CPUS} cores",
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
    """Under legate, go on; elsewhere, start a legate that runs this command, and end as it ends.

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
    threads = _threads_of(args.threads)
    if threads is not None:
        set_threads(threads)
    if not under_legate():
        _start_legate(args)
    raise_on_signals()
    if RANKS in os.environ:  # as this function did, in the process that started it
        return
    for option in ("ranks", "hosts", "cpus", "gpus", "legate"):
        if getattr(args, option) not in (None, ""):
            raise UserError(
                f"--{option} says how to start legate, which runs already; give its own options to "
                "the legate command, or start this by the flexlegion command"
            )


def _threads_of(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise UserError(f"--threads {text}: not a number, or numbers with commas between") from None


def _start_legate(args: argparse.Namespace) -> NoReturn:
    ranks = chosen_ranks(args.ranks, args.hosts)
    # Legate starts the first python on the path, which knows nothing of this one's folders.
    package = Path(flexlegion.__file__).parent
    environment = {
        **os.environ,
        **ranks.environment(),
        "PATH": _joined(Path(sys.executable).parent, os.environ.get("PATH", os.defpath)),
        "PYTHONPATH": _joined(package.parent, os.environ.get("PYTHONPATH", "")),
        **_cuda_runtime(),
    }
    command = [_legate(), *launcher_options(ranks, environment)]
    command += _asked(args.cpus, args.gpus, ranks.number == 1)
    try:
        command += shlex.split(args.legate)
    except ValueError as e:
        raise UserError(f"--legate '{args.legate}' cannot be read: {e}") from None
    command += [str(package / "__main__.py"), *args.arguments]
    phase("starting legate, which takes some seconds")
    sys.stdout.flush()
    sys.stderr.flush()
    stay_with(command, environment, ranks.number)


def _legate() -> str:
    """The path of the command beside this Python."""
    legate = Path(sys.executable).parent / "legate"
    if not legate.exists():
        raise UserError(
            f"this command runs models, for which it needs legate, but {legate} does not exist; "
            "install the package legate beside this Python"
        )
    return str(legate)


def _asked(cpus: int | None, gpus: int | None, alone: bool) -> list[str]:
    """Legate's options for them; each rank chooses by itself what was not asked for.

    Of several, others may run on machines whose GPUs are not known here.
    """
    asked = {"--cpus": cpus, "--gpus": gpus}
    options = {name: str(number) for name, number in asked.items() if number is not None}
    there = len(visible_gpus()) if gpus is None and alone else gpus
    if min(cpus or 0, gpus or 0) < 0 or (cpus == 0 and there == 0):
        text = " and ".join(map(" ".join, options.items()))
        leave = "leave" if len(options) > 1 else "leaves"
        raise UserError(f"{text} {leave} no processor to run on")
    if (cpus or 0) > MOST_LEGION_CPUS:
        raise UserError(
            f"--cpus {cpus}: Legion takes at most {MOST_LEGION_CPUS} CPU processors a rank; have "
            "each compute with several cores (--threads N), or start several ranks (--ranks N)"
        )
    return [word for option in options.items() for word in option]


def _cuda_runtime() -> dict[str, str]:
    """Where legate finds CUDA's runtime library, which it loads even without a GPU.

    pip installs it into a folder in which legate does not look.
    """
    folder = Path(sysconfig.get_path("purelib"), "nvidia", "cuda_runtime", "lib")
    if not folder.is_dir():
        return {}
    folders = (os.environ.get("LD_LIBRARY_PATH", ""), str(folder))
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}


def _joined(first: Path, others: str) -> str:
    return os.pathsep.join(filter(None, (str(first), others)))
