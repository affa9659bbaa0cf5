"""Optimizers as the native libraries take them."""

from __future__ import annotations

from typing import Any

from flexlegion.bindings.native import Arrays
from flexlegion.objective.optimizers import Optimizer


def to_native(array: Arrays, optimizer: Optimizer) -> Any:
    """The header's ``fl_optimizer``; `array` keeps it."""
    its = {
        "type": array.text(optimizer.type),
        "attributes": array.attributes(optimizer.attributes()),
    }
    return array("fl_optimizer", [its])
