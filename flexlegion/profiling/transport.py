"""What carries data between the ranks of this run: software, its settings, network adapters.

Rates of links depend on it, so the profile data base keeps them under these texts.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

_UCX = "libucp.so"
# That have no bearing on how fast data travels.
_SILENT = ("UCX_WARN_UNUSED_ENV_VARS", "UCX_LOG_LEVEL")


def software() -> str:
    """The network module and its settings, as this process loaded it; of the calling rank.

    Examples
    --------
    ``"legate 26.1.0, UCX 1.19.0, 1 core a rank, -ll:bgwork 1"``
    """
    cores = len(os.sched_getaffinity(0))
    return ", ".join(
        [
            f"legate {metadata.version('legate')}",
            _network(),
            f"{cores} core{'s' * (cores > 1)} a rank",
            *settings(os.environ),
        ]
    )


def settings(environment: Mapping[str, str]) -> list[str]:
    """Options of Legion and UCX that users set."""
    legion = " ".join(environment.get("LEGION_DEFAULT_ARGS", "").split())
    ucx = sorted(
        f"{name}={value}"
        for name, value in environment.items()
        if name.startswith("UCX_") and name not in _SILENT
    )
    return [text for text in (legion, *ucx) if text]


def _network() -> str:
    """The library that Realm's network module loaded, and its version."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return "unknown network"
    paths = {line.split()[-1] for line in lines if "/" in line}
    ucx = next((path for path in sorted(paths) if Path(path).name.startswith(_UCX)), None)
    if ucx is None:
        return "no network"
    version = ctypes.CDLL(ucx).ucp_get_version_string
    version.restype = ctypes.c_char_p
    return f"UCX {version().decode()}"


def adapters(devices: Path = Path("/sys/class")) -> str:
    """The machine's network adapters with their rates, as the kernel tells them."""
    found = [
        *_rates(devices.glob("infiniband/*/ports/*/rate"), 3, ""),
        *_rates((path / "speed" for path in devices.glob("net/*")), 1, " Mbit/s"),
    ]
    return ", ".join(found) or "no adapters"


def _rates(files: Iterable[Path], levels: int, unit: str) -> list[str]:
    """Name and rate of each adapter; the name is that of the folder so many levels above."""
    found = []
    for file in sorted(files):
        adapter = file.parents[levels - 1]
        if not (adapter / "device").exists():  # made up by software: loopback, bridges
            continue
        try:
            rate = file.read_text().strip()
        except OSError:  # it is down, or virtual
            rate = "-1"
        known = rate not in ("", "-1")
        found.append(f"{adapter.name} {rate}{unit}" if known else f"{adapter.name} of unknown rate")
    return found
