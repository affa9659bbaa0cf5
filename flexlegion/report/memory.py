"""What a program needs of each memory, as a table for whoever is told that one is too small."""

from __future__ import annotations

from flexlegion import _native
from flexlegion.report import text

_MIB = 1 << 20


def memory_table(rt: _native.Library) -> str:
    """What the last error's program would need, in MiB; nothing if it was about something else."""
    count = rt.lib.fl_rt_last_needs(0, rt.ffi.NULL)
    needs = rt.ffi.new("fl_memory_need[]", count)
    if not rt.lib.fl_rt_last_needs(count, needs):
        return ""
    columns = ["MiB", *_native.enumeration("fl_held"), "total", "taken", "capacity"]
    rows = []
    for need in needs:
        held = list(need.held)
        sizes = [-(-size // _MIB) for size in (*held, sum(held), need.taken)]
        name = rt.ffi.string(need.name).decode()
        rows.append([name, *map(str, sizes), str(need.capacity // _MIB)])
    return (
        f"{text.table(columns, rows)}\n"
        "activations: with their gradients; batches: the present one and the one that is staged; "
        "taken: by other models and as scratch memory"
    )
