"""Machines by name or file, the one that this program runs on included."""

from __future__ import annotations

from pathlib import Path

from flexlegion.base.arguments import typed
from flexlegion.machine.files import described_machine
from flexlegion.machine.topology import Topology
from flexlegion.profiling.local import local_topology


@typed
def load_machine(spec: str | Path) -> Topology:
    """The machine that `spec` stands for.

    Parameters
    ----------
    spec
        A shipped machine's name and a number of GPUs (``p100x8``), a machine file's path, or
        ``local``: the machine that this program runs on.

    Raises
    ------
    UserError
        If there is no such machine, or its file is wrong, or Legion cannot start.

    Examples
    --------
    >>> load_machine("p100x8").bandwidth("gpu:0", "gpu:4")
    12500000000
    """
    if is_local(spec):
        return local_topology()
    return described_machine(spec)


def is_local(spec: str | Path) -> bool:
    """Whether the machine that this program runs on is meant, and no file of that name."""
    return str(spec) == "local" and not Path(spec).exists()
