"""What share of their peak rates devices reach, as machine files state it.

A file's device type may say so under ``efficiency``: those of the figures below that are known, and
their source; all others are those of the device's kind, ``gpu`` or ``cpu``, in efficiencies.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from flexlegion.base.documents import Section

_SHARES = ("matmul", "matmul_backward", "convolution", "convolution_backward", "memory")
_SIZES = ("half_extent", "half_depth", "half_outputs", "launch_ns", "load_bandwidth")
_BY_FAMILY = ("compute_by_family", "memory_by_family")
# The P100's rates count direct convolution's operations, also where cuDNN takes Winograd's
# algorithm, which needs fewer: a share can be above 1.
_MOST = 10.0


@dataclass(frozen=True)
class Efficiency:
    """Shares of peak rates, and the sizes at which tasks reach half of those.

    Parameters
    ----------
    matmul, matmul_backward, convolution, convolution_backward
        Share of the peak that a large task reaches.
    half_extent
        A matrix product with that many rows, and many columns, runs at half its speed; and with
        that many columns.
    half_depth
        So does a convolution with that many multiply-adds an output element.
    half_outputs
        So does a convolution of that many output elements: it cannot fill the device.
    memory
        Usable share of the memory bandwidth.
    launch_ns
        Nanoseconds that every launched kernel adds.
    load_bandwidth
        Bytes a second at which a batch comes in from the host; 0: at the memory's, copied twice.
    compute_by_family
        Share of the peak that operators without products reach, by their family.
    memory_by_family
        Share of the usable memory bandwidth that operators get, by their family.
    source
        Where the figures come from.
    """

    matmul: float
    matmul_backward: float
    convolution: float
    convolution_backward: float
    half_extent: int
    half_depth: int
    half_outputs: int
    memory: float
    launch_ns: int
    load_bandwidth: int
    compute_by_family: Mapping[str, float] = field(hash=False)
    memory_by_family: Mapping[str, float] = field(hash=False)
    source: str


@cache
def of_kind(kind: str) -> Efficiency:
    """The estimates for all devices of a kind, ``gpu`` or ``cpu``."""
    text = Path(__file__).with_name("efficiencies.json").read_text()
    return Efficiency(**json.loads(text)[kind])


def parse_efficiency(value: Any, where: str, kind: str) -> Efficiency:
    """What a machine file states of a device type; what it does not is the kind's.

    Parameters
    ----------
    value
        The parsed object.
    where
        Its place, for messages.
    kind
        The device type's.

    Raises
    ------
    UserError
        If it is no such object.
    """
    usual = of_kind(kind)
    section = Section.of(value, where, ["source"], [*_SHARES, *_SIZES, *_BY_FAMILY])
    figures: dict[str, Any] = {"source": section.text("source")}
    figures |= {key: section.number(key, _MOST) for key in _SHARES if key in section.values}
    figures |= {key: section.integer(key, 0, 10**15) for key in _SIZES if key in section.values}
    for key in _BY_FAMILY:
        if key in section.values:
            families = getattr(usual, key)
            shares = Section.of(section.values[key], f"{where}: {key}", [], list(families))
            figures[key] = families | {f: shares.number(f, _MOST) for f in shares.values}
    return replace(usual, **figures)
