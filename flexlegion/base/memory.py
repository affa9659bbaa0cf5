"""How much memory there is."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def memory_bytes() -> int:
    """The machine's memory, or what this process may have of it."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    try:
        group = _CGROUPS / Path("/proc/self/cgroup").read_text().split("::/")[-1].strip()
    except OSError:
        return sizes[0]
    for folder in (group, *group.parents):
        limit = folder / "memory.max"
        if limit.is_file() and (text := limit.read_text().strip()) != "max":
            sizes.append(int(text))
    return min(sizes)
