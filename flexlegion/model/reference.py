"""How a model that was named is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reference:
    """How a model was named.

    Parameters
    ----------
    name
        As commands take it: ``lenet``, ``my_net.py:model``.
    sizes
        Those that were given, by name.
    """

    name: str
    sizes: Mapping[str, Any]
