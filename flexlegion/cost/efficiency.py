"""What share of its peak rates a device reaches: as its machine says, or by its model's name."""

from __future__ import annotations

import re
import warnings
from functools import cache

from flexlegion.machine.efficiency import Efficiency, of_kind
from flexlegion.machine.files import shipped
from flexlegion.machine.parts import Device


def efficiency_of(device: Device) -> Efficiency:
    """The figures that the machine states for the device; else its model's, else its kind's.

    Of a GPU of a model that no shipped machine has, the user is told so, once.
    """
    return device.efficiency or _of_model(device.kind, device.model)


@cache
def _of_model(kind: str, model: str) -> Efficiency:
    if kind == "cpu":
        return of_kind(kind)
    known = _shipped()
    # Drivers call a P100 "Tesla P100-PCIE-16GB".
    for word in re.split(r"[^A-Za-z0-9]+", model):
        if word in known:
            return known[word]
    warnings.warn(
        f"nothing says what share of its peak rates the GPU '{model}' reaches, so its tasks are "
        "priced by estimates for GPUs in general; state its 'efficiency' in the machine file, or "
        "measure tasks on it",
        stacklevel=2,
    )
    return of_kind(kind)


@cache
def _shipped() -> dict[str, Efficiency]:
    """Of all shipped device types that state them, by their models."""
    types = [its for machine in shipped().values() for its in machine.device_types.values()]
    return {its.model: its.efficiency for its in types if its.efficiency is not None}
