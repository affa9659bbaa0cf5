"""SBP signatures (OneFlow, section 3.1): how the parts of a tensor make the whole, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import described, shown


@dataclass(frozen=True)
class Sbp:
    """How a tensor lies on the devices along one axis of a mesh.

    Parameters
    ----------
    kind
        "S": split, each device has a range of one dimension. "B": broadcast, each has all of it.
        "P": partial values, each has a term of a sum (or of a maximum) that is the tensor.
    axis
        Of a split tensor, the dimension; 0 is the sample.
    """

    kind: Literal["S", "B", "P"]
    axis: int = -1

    def __repr__(self) -> str:
        return f"S({self.axis})" if self.kind == "S" else self.kind


def S(axis: int) -> Sbp:
    """Split along a dimension of the tensor, in a balanced manner; 0 is the sample.

    Raises
    ------
    UserError
        If it is no number from 0.
    """
    if type(axis) is not int or axis < 0:
        raise UserError(f"S takes the number of a dimension, from 0, but got {axis!r}")
    return Sbp("S", axis)


B = Sbp("B")
P = Sbp("P")

# One for each axis of a mesh; None: that is deduced.
Signature = tuple[Sbp | None, ...]
AnySignature = Sbp | Sequence[Sbp | None]


class Mesh:
    """Devices in a grid: OneFlow's placement.

    Parameters
    ----------
    devices
        Their names, as lists in lists: a list of names is a mesh of one axis; lists of as many
        names each, in a list, are one of two axes, the rows the first; and so on.

    Raises
    ------
    UserError
        If it is no such grid, or a device occurs twice.

    Examples
    --------
    >>> Mesh([["gpu:0", "gpu:1"], ["gpu:2", "gpu:3"]]).shape
    (2, 2)
    """

    def __init__(self, devices: Sequence[str] | Sequence[object]) -> None:
        import numpy as np

        try:
            grid = np.array(devices)
        except Exception:  # whatever an object of the user's raises
            grid = np.empty(0)
        if grid.ndim == 0 or grid.size == 0 or grid.dtype.kind != "U":
            raise UserError(
                "a mesh takes names of devices, in a list or in lists of equal length, as in "
                f"""[["gpu:0", "gpu:1"], ["gpu:2", "gpu:3"]], but got {described(devices)}"""
            )
        names, counts = np.unique(grid, return_counts=True)
        if counts.max() > 1:
            raise UserError(f"device '{names[counts.argmax()]}' occurs twice in a mesh")
        self._grid = grid

    @property
    def shape(self) -> tuple[int, ...]:
        """Devices along each axis."""
        return self._grid.shape

    @property
    def devices(self) -> tuple[str, ...]:
        """All of them, row by row."""
        return tuple(map(str, self._grid.flat))

    def device(self, place: Sequence[int]) -> str:
        """The device at a place: its number along each axis."""
        return str(self._grid[tuple(place)])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mesh):
            return False
        return (self.shape, self.devices) == (other.shape, other.devices)

    def __hash__(self) -> int:
        return hash((self.shape, self.devices))

    def __repr__(self) -> str:
        return f"Mesh({self._grid.tolist()})"


@dataclass(frozen=True)
class Placed:
    """A signature, and the mesh that it is about."""

    mesh: Mesh
    signature: Signature


def signature(given: AnySignature, mesh: Mesh, name: str, shape: Sequence[int]) -> Signature:
    """What somebody said of a tensor, with one entry for each axis of a mesh.

    Parameters
    ----------
    given
        For a mesh of one axis also without a tuple.
    mesh
        What it is about.
    name, shape
        The tensor's.

    Raises
    ------
    UserError
        If it does not fit the mesh or the tensor.
    """
    its = (given,) if isinstance(given, Sbp) or given is None else tuple(given)
    for sbp in its:
        if sbp is not None and not isinstance(sbp, Sbp):
            raise UserError(
                f"a signature of '{name}' is made of S(dimension), B, P and None, but has "
                f"{shown(str(sbp))}"
            )
        if sbp is not None and sbp.axis >= len(shape):
            raise UserError(
                f"'{name}' has dimensions 0 to {len(shape) - 1}, but its signature has {sbp}"
            )
    if len(its) != len(mesh.shape):
        raise UserError(
            f"the signature of '{name}' is for {len(its)} ax{'e' if len(its) > 1 else 'i'}s, "
            f"{text(its)}, but its mesh has {len(mesh.shape)}: {'x'.join(map(str, mesh.shape))}"
        )
    return its


def text(signature: Sequence[Sbp | None]) -> str:
    """A signature for people: ``S(0)``, or of several axes ``(S(0), B)``."""
    words = ["?" if sbp is None else repr(sbp) for sbp in signature]
    return words[0] if len(words) == 1 else f"({', '.join(words)})"
