"""The running machine as a machine file, measured now.

Every rank makes the same calls.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import flexlegion
from flexlegion.console.text import count
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.machine.folding import machine_document
from flexlegion.machine.running import running_machine
from flexlegion.profiling import transport
from flexlegion.profiling.local import hosts_and_models, local_topology

_HOSTS_NAMED = 4
_KINDS = {"cpu": "processor", "gpu": "GPU"}


def measured_nodes() -> int:
    """On how many nodes the ranks run."""
    return len(set(hosts_and_models()[0]))


def measured_document(nodes: int | None = None) -> dict[str, Any]:
    """A machine file's content that says what the machine ``local`` is.

    Parameters
    ----------
    nodes
        How many nodes it is to have; as many as there are by default.

    Raises
    ------
    UserError
        As `flexlegion.machine.folding.machine_document`.
    """
    machine = running_machine()
    hosts = list(dict.fromkeys(hosts_and_models()[0]))
    # Anew, whatever was measured before.
    with TemporaryDirectory() as folder, ProfileDB(Path(folder) / "profiles.db") as fresh:
        topology = local_topology(fresh)
    nodes = nodes or len(hosts)
    named = hosts[:_HOSTS_NAMED]
    if len(hosts) > _HOSTS_NAMED:
        named.append(f"{len(hosts) - _HOSTS_NAMED} more")
    kinds = Counter(device.kind for device in topology.devices if device.node == 0)
    each = " and ".join(count(number, _KINDS[kind]) for kind, number in kinds.items())
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    description = f"{count(nodes, 'node')} of {each}, measured on {', '.join(named)}, {when}"
    if nodes != len(hosts):
        description += f"; extended from {count(len(hosts), 'node')}"
    source = (
        f"flexlegion {flexlegion.__version__}, machine measure on {count(machine.ranks, 'rank')} "
        f"({transport.software()}): copies between tasks, a product of 1024 x 1024 x 1024, a sum "
        "of 16 MiB; GPUs as their driver tells"
    )
    return machine_document(topology, description, source, nodes)
