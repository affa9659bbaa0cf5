"""What machines are made of: devices, switches, and links between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from flexlegion.machine.efficiency import Efficiency


@dataclass(frozen=True)
class Device:
    """A processor that executes tasks.

    Parameters
    ----------
    name
        ``gpu:3`` or ``cpu:0``, counted over all nodes, as in strategies.
    kind
        ``gpu`` or ``cpu``.
    model
        What it is, for people: ``P100``.
    node
        The number of its node.
    memory
        The memory that holds its data. Devices with the same memory need no transfers. A memory
        that only one device has bears the device's name.
    memory_bytes
        Size of the memory.
    peak_flops
        Floating-point operations a second for each precision (``float32``, ...).
    memory_bandwidth
        Bytes a second.
    efficiency
        What share of these rates it reaches; None: nobody said it.
    """

    name: str
    kind: str
    model: str
    node: int
    memory: str
    memory_bytes: int
    peak_flops: Mapping[str, int] = field(hash=False)
    memory_bandwidth: int
    efficiency: Efficiency | None = field(default=None, hash=False)


@dataclass(frozen=True)
class Switch:
    """A vertex without computation: a switch or a host bridge; `node` is None in the network."""

    name: str
    node: int | None = None


@dataclass(frozen=True)
class Link:
    """A connection, an edge of D_E, with the same rate in both directions.

    Parameters
    ----------
    name
        Unique.
    kind
        What it is, for people: ``nvlink``.
    source, destination
        The vertices that it connects: memories or switches.
    bandwidth
        Bytes a second.
    latency_ns
        Nanoseconds.
    shared
        Whether both directions are one communication device, or each is its own.
    """

    name: str
    kind: str
    source: str
    destination: str
    bandwidth: int
    latency_ns: int
    shared: bool = False


@dataclass(frozen=True)
class Hop:
    """One direction of a link."""

    link: Link
    backward: bool = False

    @property
    def source(self) -> str:
        """The vertex that it leads from."""
        return self.link.destination if self.backward else self.link.source

    @property
    def destination(self) -> str:
        """The vertex that it leads to."""
        return self.link.source if self.backward else self.link.destination

    @cached_property
    def channel(self) -> str:
        """The communication device that serves it; a shared link is one for both directions."""
        return self.link.name if self.link.shared else f"{self.source} -> {self.destination}"

    def __invert__(self) -> Hop:
        return Hop(self.link, not self.backward)
