"""Operators that move elements: reshape, transpose, slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import ClassVar

from flexlegion.errors import UserError
from flexlegion.ops.base import (
    SAMPLE,
    WHOLE,
    Access,
    Dim,
    DimKind,
    DimMap,
    Family,
    OperatorType,
    along,
    outer_dims,
    shifted,
)
from flexlegion.tensor import Shape


@dataclass(frozen=True)
class _Move(OperatorType):
    family: ClassVar[Family] = "copy"

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 0


def _groups(before: Shape, after: Shape) -> list[tuple[list[int], list[int]]]:
    """Cuts dimensions into the smallest runs of equal products: [(of before, of after), ...].

    Extents of 1 belong to no group: they neither hold nor move anything.
    """
    left = [d for d, extent in enumerate(before) if extent > 1]
    right = [d for d, extent in enumerate(after) if extent > 1]
    groups = []
    while left and right:
        a, b = [left.pop(0)], [right.pop(0)]
        while (p := prod(before[d] for d in a)) != (q := prod(after[d] for d in b)):
            if p < q:
                a.append(left.pop(0))
            else:
                b.append(right.pop(0))
        groups.append((a, b))
    return groups


@dataclass(frozen=True)
class Reshape(_Move):
    """Input (n, ...), output (n, *shape), row-major.

    Dimensions that are joined or cut form groups, as (12, 64) and 768 do. The outermost dimension
    of a group can be split: its range lies in a range of the input's outermost one, of which the
    inner dimensions are read whole. The group's other dimensions cannot be split.
    """

    type: ClassVar[str] = "reshape"

    shape: tuple[int, ...]  # without the sample dimension

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        if prod(self.shape) != prod(inputs[0][1:]):
            raise UserError(
                f"reshape takes samples of as many elements as {list(self.shape)} has, "
                f"{prod(self.shape)}, but got shape {list(inputs[0][1:])}"
            )
        return (inputs[0][0], *self.shape)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        outer = {after[0] for _, after in _groups(inputs[0][1:], self.shape)}
        return (
            SAMPLE,
            *(
                Dim(dim.name, dim.kind if d in outer else DimKind.NONE)
                for d, dim in enumerate(outer_dims(len(self.shape) + 1)[1:])
            ),
        )

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        before, after = inputs[0][1:], self.shape
        maps = [WHOLE] * len(before)
        for a, b in _groups(before, after):
            num, den = prod(after[d] for d in b[1:]), prod(before[d] for d in a[1:])
            common = gcd(num, den)
            maps[a[0]] = DimMap(b[0] + 1, num // common, den // common)
        return (Access((along(0), *maps), linear=True),)


@dataclass(frozen=True)
class Transpose(_Move):
    """Dimension d of the output is dimension permutation[d] of the input; samples stay first."""

    type: ClassVar[str] = "transpose"

    permutation: tuple[int, ...]

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        rank = len(inputs[0])
        if sorted(self.permutation) != list(range(rank)) or self.permutation[0] != 0:
            raise UserError(
                f"transpose takes an order of the dimensions 0 to {rank - 1} that begins with 0, "
                f"the sample, but got {list(self.permutation)}"
            )
        return tuple(inputs[0][d] for d in self.permutation)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return outer_dims(len(inputs[0]))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        order = [self.permutation.index(d) for d in range(len(inputs[0]))]
        return (Access(tuple(map(along, order)), linear=True),)


@dataclass(frozen=True)
class Slice(_Move):
    """The range [start, start + size) of dimension `axis`; the others whole."""

    type: ClassVar[str] = "slice"

    axis: int
    start: int
    size: int

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        rank = len(inputs[0])
        if not 1 <= self.axis < rank:
            raise UserError(
                f"slice cuts a dimension 1 to {rank - 1} of its input (0 is the sample), "
                f"but axis is {self.axis}"
            )
        extent = inputs[0][self.axis]
        if self.start < 0 or self.size < 1 or self.start + self.size > extent:
            raise UserError(
                f"slice takes a part of the extent {extent}, "
                f"but got [{self.start}, {self.start + self.size})"
            )
        return (*inputs[0][: self.axis], self.size, *inputs[0][self.axis + 1 :])

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return outer_dims(len(inputs[0]))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        maps = [along(d) for d in range(len(inputs[0]))]
        maps[self.axis] = shifted(self.axis, self.start)
        return (Access(tuple(maps), linear=True),)
