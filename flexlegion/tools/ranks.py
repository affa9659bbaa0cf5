"""Several ranks: which machines run how many of them, and the launcher that starts them there."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from flexlegion.errors import UserError
from flexlegion.report.text import count

MEMORY_SHARE = 0.8  # of a machine's memory, as Legate's own choice for one rank
_SLOTS = re.compile(r"(?P<host>\S+)(?:\s+\S+)*?\s+slots\s*=\s*(?P<slots>\d+)")


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
        The file that lists the machines; none where there is one, or the launcher knows them.
    """

    machines: int
    each: int
    hosts: Path | None = None

    @property
    def number(self) -> int:
        """Of all machines together."""
        return self.machines * self.each


def chosen_ranks(number: int | None, hosts: str | None) -> Ranks:
    """The ranks that ``--ranks`` or ``--hosts`` ask for.

    Raises
    ------
    UserError
        If they cannot be had.
    """
    if hosts is not None:
        return _of_hosts(Path(hosts))
    if number is None:
        return Ranks(1, 1)
    if number < 1:
        raise UserError(f"--ranks has to be at least 1, but is {number}")
    return Ranks(1, number)


def _of_hosts(path: Path) -> Ranks:
    """The machines of a file with lines ``name slots=N``, as mpirun reads it."""
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not text"
        raise UserError(f"{path}: the hosts cannot be read ({reason})") from None
    slots: dict[str, int] = {}
    for line in filter(None, lines):
        match = _SLOTS.match(line)
        if match is None or int(match["slots"]) < 1:
            raise UserError(f"{path}: '{line}' is not a host with slots, as in 'node1 slots=2'")
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
    return Ranks(len(slots), next(iter(slots.values())), path)


def launcher_options(ranks: Ranks, environment: list[str]) -> list[str]:
    """The options by which legate starts the ranks.

    Parameters
    ----------
    ranks
        More than one.
    environment
        Names of variables that legate does not hand on to other machines by itself.

    Raises
    ------
    UserError
        If a launcher or Legate's network module is missing.
    """
    from legate.install_info import networks

    if not networks:
        raise UserError(
            f"{count(ranks.number, 'rank')} need a network, for which the installed legate was not "
            "built; install legate 26.1, or train on one rank"
        )
    if shutil.which("mpirun") is None:
        raise UserError(
            "several ranks are started by mpirun, which is not on the path; install Open MPI "
            "(Debian's openmpi-bin and libopenmpi-dev)"
        )
    extra = [] if ranks.hosts is None else ["--hostfile", str(ranks.hosts)]
    extra += ["--oversubscribe", *(f"-x {name}" for name in environment)]
    return [
        "--launcher",
        "mpirun",
        f"--launcher-extra={' '.join(extra)}",
    ]


def sysmem(ranks: Ranks) -> int:
    """MiB of memory for each rank."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(MEMORY_SHARE * total / ranks.each) >> 20
