"""The processes of a run: which one this is, and how many were started together.

Imported before all else, so it imports little.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

# What `flexlegion` sets for the processes that it starts: their number, and that on each machine.
RANKS = "FLEXLEGION_RANKS"
RANKS_EACH = "FLEXLEGION_RANKS_EACH"
# How many processes were started together, by us, Open MPI, MPICH, or Slurm's srun; and how many of
# them run on this machine, by launchers that leave it to each where on the machine it runs.
_TOGETHER = (RANKS, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
_RANK = ("LEGATE_GLOBAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
HERE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def rank() -> int:
    """Which of the processes this is, known before Legion starts."""
    return first_number(_RANK, 0)


def processes() -> int:
    """How many were started together."""
    return first_number(_TOGETHER, 1)


def first_number(names: Sequence[str], default: int) -> int:
    """The number that the first of these variables states which the environment has."""
    return next((int(os.environ[name]) for name in names if name in os.environ), default)
