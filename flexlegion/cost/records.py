"""What the profile data base keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class TaskKey:
    """All that a task's time depends on, but for the device and the kernel library.

    Parameters
    ----------
    type, attributes
        The operator's, attributes as ``name=value`` with blanks between, in order.
    shapes
        Extents of the operands' parts: ``16x28x28x1 =6x5x5x1 ...``. A part that is not one run of
        the memory of its tensor has, after an ``@``, the tensor's extents that its strides come
        from: ``16x14x14x3@14x14x6``. An ``=`` stands before what all tasks of a split operator
        read as a whole: devices that share a memory read it at the same place.
    stage
        ``forward`` or ``backward``.
    gradients
        For the backward pass: for each input, 1 if its gradient is computed, else 0; and a note if
        its weights are frozen.
    data_type
        Of the primary output.
    """

    type: str
    attributes: str
    shapes: str
    stage: str
    gradients: str
    data_type: str


@dataclass(frozen=True)
class Sample:
    """What was measured.

    Parameters
    ----------
    time_ns
        The median, while the devices that share its memory run the same task.
    runs
        How many runs.
    spread_ns
        Between the quartiles.
    alone_ns
        The median while they are idle; 0 where there are none.
    """

    time_ns: int
    runs: int
    spread_ns: int
    alone_ns: int = 0


class Times(NamedTuple):
    """A task's times (ns): `time_ns` and `alone_ns` of `Sample`."""

    time_ns: int
    alone_ns: int = 0


@dataclass(frozen=True)
class LinkRates:
    """A measured path between two memories.

    Parameters
    ----------
    bytes_per_second
        In one direction.
    latency_ns
        What a task waits for an empty message.
    """

    bytes_per_second: int
    latency_ns: int


@dataclass(frozen=True)
class DeviceRates:
    """A measured device.

    Parameters
    ----------
    peak_flops, memory_bandwidth
        Operations and bytes a second.
    """

    peak_flops: int
    memory_bandwidth: int
