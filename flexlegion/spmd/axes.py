"""Devices as one mesh of prime axes, and which dimension of an operator each axis divides.

A strategy of SOAP names a device for each task; DTensor and JAX name, for each axis of a mesh, what
is split along it. Both say the same where the devices of an operator's tasks, taken as digits in
the mesh, make a grid: along an axis one dimension is divided, or the axis is constant. Along such
an axis the other devices would be idle; in a mesh they repeat what the tasks compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

_NAMES = "abcdefghijklmnopq"  # 2^17 devices


@dataclass(frozen=True)
class Axes:
    """The axes of a mesh, in which device d is at the digits of d, the last axis the fastest.

    Parameters
    ----------
    sizes
        Devices along each axis.
    """

    sizes: tuple[int, ...]

    @classmethod
    def prime(cls, devices: int) -> Axes:
        """Axes of prime numbers of devices, ascending; of one device, an axis of one."""
        left, factor, found = devices, 2, []
        while left > 1:
            while left % factor == 0:
                found.append(factor)
                left //= factor
            factor += 1
        return cls(tuple(found) or (1,))

    @property
    def devices(self) -> int:
        """How many there are."""
        return prod(self.sizes)

    @property
    def names(self) -> tuple[str, ...]:
        """A letter for each."""
        return tuple(_NAMES[: len(self.sizes)])

    def digits(self, device: int) -> tuple[int, ...]:
        """Where a device is along each axis."""
        place = []
        for size in reversed(self.sizes):
            device, digit = divmod(device, size)
            place.append(digit)
        return tuple(reversed(place))

    def divided(self, degrees: Sequence[int], devices: Sequence[int]) -> Division | None:
        """What each axis divides, if tasks on these devices make a grid.

        Parameters
        ----------
        degrees
            Of the operator's dimensions.
        devices
            A number for each task, row-major over the degrees.

        Returns
        -------
        Division or None
            None: they make no grid.
        """
        places = [self.digits(device) for device in devices]
        division: list[int | None] = [None] * len(self.sizes)
        stride = len(devices)
        for d, degree in enumerate(degrees):
            stride //= degree
            for i in range(1, degree):  # the tasks along this dimension, from the first one
                for axis, (here, first) in enumerate(
                    zip(places[i * stride], places[0], strict=True)
                ):
                    if here != first:
                        if division[axis] not in (None, d):
                            return None
                        division[axis] = d
        result = Division(self, tuple(division))
        if any(prod(self.sizes[a] for a in result.along(d)) != n for d, n in enumerate(degrees)):
            return None
        for task, place in enumerate(places):
            left, mine = task, []
            for degree in reversed(degrees):
                left, digit = divmod(left, degree)
                mine.append(digit)
            if [result.part(d, place) for d in range(len(degrees))] != mine[::-1]:
                return None
            if any(
                here != first
                for here, first, d in zip(place, places[0], division, strict=True)
                if d is None
            ):
                return None
        return result

    def ascending(self, degrees: Sequence[int]) -> Division | None:
        """What each axis divides where tasks are on the first devices, in order.

        Returns
        -------
        Division or None
            None: the degrees are no products of neighbouring axes.
        """
        return _ascending(self, tuple(degrees))


@dataclass(frozen=True)
class Division:
    """For each axis the dimension of an operator's space that it divides; None: it repeats."""

    axes: Axes
    dims: tuple[int | None, ...]

    def along(self, dim: int) -> tuple[int, ...]:
        """The axes that divide a dimension, in order."""
        return tuple(axis for axis, its in enumerate(self.dims) if its == dim)

    def parts(self, dim: int) -> int:
        """Into how many parts a dimension is divided."""
        return prod(self.axes.sizes[axis] for axis in self.along(dim))

    def part(self, dim: int, place: Sequence[int]) -> int:
        """Which part of a dimension a device at a place has."""
        number = 0
        for axis in self.along(dim):
            number = number * self.axes.sizes[axis] + place[axis]
        return number

    @property
    def repeats(self) -> bool:
        """Whether several devices compute the same."""
        return any(
            dim is None and size > 1 for dim, size in zip(self.dims, self.axes.sizes, strict=True)
        )


@cache  # a search asks for the same degrees of each operator
def _ascending(axes: Axes, degrees: tuple[int, ...]) -> Division | None:
    if prod(degrees) > axes.devices:
        return None
    return axes.divided(degrees, range(prod(degrees)))


def joined(divisions: Mapping[str, Division], axes: Axes) -> tuple[Axes, dict[str, Division]]:
    """The same divisions of a mesh of fewer axes: neighbours that always go together are one.

    Parameters
    ----------
    divisions
        By operator, of these axes.
    axes
        Of the mesh.
    """
    starts = [0]  # where a new axis begins
    for axis in range(1, len(axes.sizes)):
        if any(its.dims[axis] != its.dims[axis - 1] for its in divisions.values()):
            starts.append(axis)
    ends = [*starts[1:], len(axes.sizes)]
    fewer = Axes(tuple(prod(axes.sizes[a:b]) for a, b in zip(starts, ends, strict=True)))
    return fewer, {
        name: Division(fewer, tuple(its.dims[axis] for axis in starts))
        for name, its in divisions.items()
    }
