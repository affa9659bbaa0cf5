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

# Figures of products, which may differ by precision.
_PRODUCT_SHARES = (
    "matmul",
    "matmul_backward",
    "convolution",
    "convolution_backward",
    "small_filters",
    "small_filters_backward",
    "attention",
    "attention_backward",
    "sustained",
    "aligned_2",
    "aligned_4",
    "aligned_8",
)
_PRODUCT_SIZES = (
    "half_extent",
    "half_tile",
    "half_inner",
    "half_depth",
    "half_outputs",
    "small_filters_half_depth",
)
_SHARES = (*_PRODUCT_SHARES, "memory")
_SIZES = (*_PRODUCT_SIZES, "multiprocessors", "ring_bandwidth", "launch_ns", "load_bandwidth")
_BY_FAMILY = ("compute_by_family", "memory_by_family")
_PRECISIONS = ("float32", "tfloat32", "bfloat16", "float16", "float8")
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
    small_filters, small_filters_backward
        The same of convolutions by 3x3 filters that move by one, where libraries know algorithms
        of fewer operations (Winograd's): what is counted are the operations of the direct one. 0:
        as any other convolution.
    attention, attention_backward
        The same of attention in one kernel, which keeps no scores. 0: as other matrix products.
    multiprocessors
        How many compute tiles of matrix products, each one at a time (`flexlegion.cost.products`).
        0: not known, so that small products follow `half_extent`.
    ring_bandwidth
        Bytes a second for which NCCL makes one ring more inside a node. 0: not known.
    half_tile
        A tile takes twice as long for its multiplications as one without ends if it has twice that
        many rows, and columns: so it does for the operands that it reads.
    half_extent
        Where multiprocessors are not known, a matrix product with that many rows, and many columns,
        runs at half its speed; and with that many columns.
    half_inner
        And with that many terms in each of its sums.
    aligned_2, aligned_4, aligned_8
        Share of its rate that a product keeps if rows of its matrices begin at multiples of 2, 4 or
        8 bytes alone: tensor cores want 16.
    half_depth, small_filters_half_depth
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
    sustained
        Share of these rates that products keep in training, which runs on: where power is short,
        clocks fall below those of a short measurement.
    source
        Where the figures come from.
    by_precision
        Of products in a precision, by its name, which of the figures above differ, and their
        values.
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
    multiprocessors: int = 0
    ring_bandwidth: int = 0
    half_tile: int = 0
    half_inner: int = 0
    small_filters: float = 0.0
    small_filters_backward: float = 0.0
    small_filters_half_depth: int = 0
    attention: float = 0.0
    attention_backward: float = 0.0
    sustained: float = 1.0
    aligned_2: float = 1.0
    aligned_4: float = 1.0
    aligned_8: float = 1.0
    by_precision: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)

    def at(self, precision: str) -> Efficiency:
        """The same with what is said of products in that precision."""
        its = self.by_precision.get(precision)
        changed: dict[str, Any] = dict(its or {})
        return replace(self, **changed, by_precision={}) if its else self


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
    known = [*_SHARES, *_SIZES, *_BY_FAMILY, "by_precision"]
    section = Section.of(value, where, ["source"], known)
    figures: dict[str, Any] = {"source": section.text("source")}
    figures |= {key: section.number(key, _MOST) for key in _SHARES if key in section.values}
    figures |= {key: section.integer(key, 0, 10**15) for key in _SIZES if key in section.values}
    for key in _BY_FAMILY:
        if key in section.values:
            families = getattr(usual, key)
            shares = Section.of(section.values[key], f"{where}: {key}", [], list(families))
            figures[key] = families | {f: shares.number(f, _MOST) for f in shares.values}
    if "by_precision" in section.values:
        figures["by_precision"] = _by_precision(section.values["by_precision"], where)
    return replace(usual, **figures)


def _by_precision(value: Any, where: str) -> dict[str, dict[str, float]]:
    """Of each precision, the figures of products that differ there."""
    section = Section.of(value, f"{where}: by_precision", [], list(_PRECISIONS))
    found = {}
    for precision, its in section.values.items():
        place = f"{where}: by_precision: {precision}"
        figures = Section.of(its, place, [], [*_PRODUCT_SHARES, *_PRODUCT_SIZES])
        found[precision] = {
            key: figures.number(key, _MOST)
            if key in _PRODUCT_SHARES
            else figures.integer(key, 0, 10**15)
            for key in figures.values
        }
    return found
