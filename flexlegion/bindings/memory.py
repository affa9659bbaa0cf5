"""What a program needs of each memory, as a table for whoever is told that one is too small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flexlegion.bindings import native
from flexlegion.console import text

_MIB = 1 << 20


def memory_table(needs: Sequence[Any]) -> str:
    """What a program would need, in MiB, from the header's ``fl_memory_need`` of each memory."""
    columns = ["MiB", *native.enumeration("fl_held"), "total", "taken", "capacity"]
    rows = []
    for need in needs:
        held = list(need.held)
        sizes = [-(-size // _MIB) for size in (*held, sum(held), need.taken)]
        name = native.core().ffi.string(need.name).decode()
        rows.append([name, *map(str, sizes), str(need.capacity // _MIB)])
    return (
        f"{text.table(columns, rows)}\n"
        "activations: with their gradients; batches: the present one and the one that is staged; "
        "taken: by other models and as scratch memory"
    )
