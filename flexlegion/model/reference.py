"""How a model that was named is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flexlegion.model.model import Model


@dataclass(frozen=True)
class Reference:
    """How a model was named.

    Parameters
    ----------
    name
        As commands take it: ``lenet``, ``my_net.py:model``.
    sizes
        Those that were given, by name.
    again
        Makes the model once more, of another batch size.
    """

    name: str
    sizes: Mapping[str, Any]
    again: Callable[[int], Model] = field(repr=False, compare=False)
