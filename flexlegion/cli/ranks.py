"""Several ranks: which machines run how many of them, and what starts them there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flexlegion.base.errors import UserError
from flexlegion.base.files import open_file, read_at_most
from flexlegion.base.quoting import printable
from flexlegion.console.text import WHOLE, count
from flexlegion.process.together import RANKS, RANKS_EACH, processes

_SLOTS = re.compile(r"(?P<host>\S+)(?:\s+\S+)*?\s+slots\s*=\s*(?P<slots>\d{1,6})(?!\d)")
# Ranks on a core: more of them, each with threads of its own, would hold up the whole machine.
_MOST_OF_CORE = 8
_HOSTS_BYTES = 1 << 20
# Of this command's environment, beside what legate hands on to other machines by itself: PATH and
# its like, and what begins with LEGATE_, LEGION_, PYTHON, UCX_ and others.
_HANDED_ON = re.compile("FLEXLEGION_.*|WANDB_.*|CUDA_VISIBLE_DEVICES|TERM|COLUMNS|XDG_CACHE_HOME")


@dataclass(frozen=True)
class Ranks:
    """How many ranks run where.

    Parameters
    ----------
    machines
        Number of machines.
    each
        Ranks on each machine.
    hosts
        The file that lists the machines; none where there is one, or Slurm knows them.
    """

    machines: int
    each: int
    hosts: Path | None = None

    @property
    def number(self) -> int:
        """Of all machines together."""
        return self.machines * self.each

    def environment(self) -> dict[str, str]:
        """What tells the ranks of each other, and makes the launcher start them."""
        environment = {RANKS: str(self.number), RANKS_EACH: str(self.each)}
        if self.number == 1:
            return environment
        if os.geteuid() == 0:  # mpirun asks twice
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        # mpirun gives the ranks a terminal of their own, whatever its output goes to.
        if os.isatty(1):
            environment["COLUMNS"] = str(shutil.get_terminal_size().columns)
        else:
            environment |= {"TERM": "dumb", "COLUMNS": str(WHOLE)}
        return environment


def chosen_ranks(number: int | None, hosts: str | None) -> Ranks:
    """The ranks that ``--ranks`` or ``--hosts`` ask for.

    Raises
    ------
    UserError
        If they cannot be had.
    """
    if processes() > 1:
        raise UserError(
            f"this is one of {processes()} processes that were started together, and each would "
            f"train by itself; start it once, with --ranks {processes()}"
        )
    if hosts is not None:
        return _of_hosts(Path(hosts))
    if number is None:
        return Ranks(1, 1)
    if number < 1:
        raise UserError(f"--ranks has to be at least 1, but is {number}")
    machines = int(os.environ.get("SLURM_JOB_NUM_NODES", 1)) if number > 1 else 1
    if number % machines:
        raise UserError(
            f"--ranks {number} cannot be spread evenly over the {machines} machines of Slurm's job"
        )
    most = _MOST_OF_CORE * len(os.sched_getaffinity(0))
    if number // machines > most:
        raise UserError(
            f"--ranks {number} starts {number // machines} processes on this machine, which has "
            f"cores for {most} that take turns; start fewer"
        )
    return Ranks(machines, number // machines)


def _of_hosts(path: Path) -> Ranks:
    """The machines of a file with lines ``name slots=N``, as mpirun reads it."""
    try:
        with open_file(path) as file:
            content = read_at_most(file, _HOSTS_BYTES)
        text = None if content is None else content.decode()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not text"
        raise UserError(f"{path}: the hosts cannot be read ({reason})") from None
    if text is None:
        raise UserError(f"{path}: too large for a file of hosts; give lines like 'node1 slots=2'")
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    slots: dict[str, int] = {}
    for line in filter(None, lines):
        match = _SLOTS.match(line)
        if match is None or int(match["slots"]) < 1:
            raise UserError(
                f"{path}: '{printable(line, 80)}' is not a host with slots, as in 'node1 slots=2'"
            )
        if match["host"] in slots:
            raise UserError(f"{path}: the host {match['host']} is there twice")
        slots[match["host"]] = int(match["slots"])
    if not slots:
        raise UserError(f"{path}: there are no hosts in it; write lines like 'node1 slots=2'")
    if len(set(slots.values())) > 1:
        listed = ", ".join(f"{host} {number}" for host, number in slots.items())
        raise UserError(
            f"{path}: every host needs the same number of slots, but there are {listed}"
        )
    return Ranks(len(slots), next(iter(slots.values())), path.resolve())


def launcher_options(ranks: Ranks, environment: Mapping[str, str]) -> list[str]:
    """The options by which legate starts the ranks with an environment.

    Raises
    ------
    UserError
        If a launcher or Legate's network module is missing.
    """
    options = ["--nodes", str(ranks.machines), "--ranks-per-node", str(ranks.each)]
    if ranks.number == 1:
        return options
    from legate.install_info import networks

    if not networks:
        raise UserError(
            f"{count(ranks.number, 'rank')} need a network, for which the installed legate was not "
            "built; install legate 26.1, or train on one rank"
        )
    if ranks.hosts is None and _srun_starts_mpi():
        launcher, extra = "srun", _srun_options(ranks)
    elif shutil.which("mpirun"):
        launcher, extra = "mpirun", _mpirun_options(ranks, environment)
    else:
        raise UserError(
            "several ranks are started by mpirun, which is not on the path; install Open MPI "
            "(Debian's openmpi-bin and libopenmpi-dev)"
        )
    return [*options, "--launcher", launcher, f"--launcher-extra={' '.join(extra)}"]


def _mpirun_options(ranks: Ranks, environment: Mapping[str, str]) -> list[str]:
    where = ["--oversubscribe"] if ranks.hosts is None else ["--hostfile", f"'{ranks.hosts}'"]
    handed_on = filter(_HANDED_ON.fullmatch, sorted(environment))
    return ["--quiet", *where, *(f"-x {name}" for name in handed_on)]


def _srun_starts_mpi() -> bool:
    """Whether this is a job of a Slurm that can start Open MPI's processes, which takes PMIx."""
    if "SLURM_JOB_ID" not in os.environ or not shutil.which("srun"):
        return False
    listed = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, check=False)
    return "pmix" in (listed.stdout + listed.stderr).split()


def _srun_options(ranks: Ranks) -> list[str]:
    """Those of a step of the job; srun binds its processes to cores."""
    cores = os.environ.get("SLURM_CPUS_PER_TASK")
    if cores is None:
        cores = str(max(1, int(os.environ.get("SLURM_CPUS_ON_NODE", 1)) // ranks.each))
    return ["--mpi=pmix", f"--cpus-per-task={cores}", "--kill-on-bad-exit=1", "--quit-on-interrupt"]
