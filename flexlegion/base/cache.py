"""Where a user's files are kept that can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The folder of flexlegion in the user's cache, by platform; it need not exist yet.

    Raises
    ------
    RuntimeError
        If the user has no home.
    """
    if folder := os.environ.get("XDG_CACHE_HOME"):
        cache = Path(folder)
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        cache = Path.home() / ".cache"
    return cache / "flexlegion"
