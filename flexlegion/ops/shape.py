"""Operators that move elements."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.graph.operator_type import (
    SAMPLE,
    WHOLE,
    Access,
    Dim,
    DimKind,
    DimMap,
    Family,
    OperatorType,
    Values,
    along,
    outer_dims,
    shifted,
    window,
)
from flexlegion.graph.tensor import DataType, Shape


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


def _dims(rank: int, split: Container[int]) -> tuple[Dim, ...]:
    """The samples, and `rank` dimensions of which these can be split."""
    return (
        SAMPLE,
        *(
            Dim(dim.name, dim.kind if d in split else DimKind.NONE)
            for d, dim in enumerate(outer_dims(rank + 1)[1:])
        ),
    )


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
        return _dims(len(self.shape), outer)

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


def _axes_of(shape: Sequence[int], extents: Sequence[int]) -> list[range] | None:
    """Which axes each dimension is cut into; None if they do not fit."""
    found, at = [], 0
    for extent in shape:
        begin, product = at, 1
        while product < extent and at < len(extents):
            product *= extents[at]
            at += 1
        if product != extent:
            return None
        found.append(range(begin, at))
    return found if at == len(extents) else None


@dataclass(frozen=True)
class Rearrange(_Move):
    """A reshape, a transpose and a reshape in one copy; einops has the name.

    The input's dimensions but the samples' are cut into axes of `extents`, the major one first.
    Axis i of the output is the input's axis order[i]; together they have the dimensions `shape`.

    An output's dimension can be split if it is one axis, the major one of an input's dimension. Of
    others a range would be elements that lie apart in the input.
    """

    type: ClassVar[str] = "rearrange"

    extents: tuple[int, ...]  # each at least 2
    order: tuple[int, ...]
    shape: tuple[int, ...]  # without the sample dimension

    def _axes(self, before: Shape) -> tuple[list[range], list[range]]:
        """Which axes the dimensions of the input, and of the output, have."""
        numbers = range(len(self.extents))
        if sorted(self.order) != list(numbers) or min(self.extents, default=2) < 2:
            raise UserError(
                f"rearrange takes extents of at least 2 and an order of their numbers, but got "
                f"{list(self.extents)} and {list(self.order)}"
            )
        ordered = [self.extents[i] for i in self.order]
        sides = (("input", before, self.extents), ("output", self.shape, ordered))
        found = []
        for name, shape, extents in sides:
            axes = _axes_of(shape, extents)
            if axes is None:
                raise UserError(
                    f"rearrange takes axes that make up dimensions, but its {name}'s, "
                    f"{list(shape)}, are not made up of {list(extents)}"
                )
            found.append(axes)
        return found[0], found[1]

    def extents_of(self, tile: Shape) -> tuple[int, ...]:
        """Extents of the axes in a tile of the output; only whole axes' dimensions are cut."""
        extents = list(self.extents)
        made = _axes_of(self.shape, [self.extents[i] for i in self.order])
        assert made is not None
        for its, whole, part in zip(made, self.shape, tile[1:], strict=True):
            if part < whole:
                extents[self.order[its[0]]] = part
        return tuple(extents)

    def _split(self, before: Shape) -> dict[int, tuple[int, int]]:
        """What can be split: dimension of the output to that of the input, and elements a step."""
        inner = {}
        axes, made = self._axes(before)
        for d, its in enumerate(axes):
            if its:
                inner[its[0]] = (d, prod(self.extents[i] for i in its[1:]))
        alone = {o: self.order[its[0]] for o, its in enumerate(made) if len(its) == 1}
        return {o: inner[axis] for o, axis in alone.items() if axis in inner}

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        self._axes(inputs[0][1:])
        return (inputs[0][0], *self.shape)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return _dims(len(self.shape), self._split(inputs[0][1:]))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        maps = [WHOLE] * (len(inputs[0]) - 1)
        for o, (d, inner) in self._split(inputs[0][1:]).items():
            maps[d] = DimMap(o + 1, inner)
        return (Access((along(0), *maps), linear=True),)


@dataclass(frozen=True)
class Slice(_Move):
    """`size` elements of dimension `axis` from `start` on, each `step`th; the others whole."""

    type: ClassVar[str] = "slice"

    axis: int
    start: int
    size: int
    step: int = 1

    @property
    def _end(self) -> int:
        """Behind the last element that is taken."""
        return self.start + (self.size - 1) * self.step + 1

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        rank = len(inputs[0])
        if not 1 <= self.axis < rank:
            raise UserError(
                f"slice cuts a dimension 1 to {rank - 1} of its input (0 is the sample), "
                f"but axis is {self.axis}"
            )
        extent = inputs[0][self.axis]
        if self.start < 0 or self.size < 1 or self.step < 1 or self._end > extent:
            raise UserError(
                f"slice takes a part of the extent {extent}, but got [{self.start}, {self._end})"
            )
        return (*inputs[0][: self.axis], self.size, *inputs[0][self.axis + 1 :])

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return outer_dims(len(inputs[0]))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        maps = [along(d) for d in range(len(inputs[0]))]
        maps[self.axis] = window(self.axis, 1, self.step, -self.start)
        return (Access(tuple(maps), linear=True),)

    def attributes(self) -> dict[str, str]:
        """As `OperatorType.attributes`; kernels take a step of 1 for granted."""
        given = super().attributes()
        return {k: v for k, v in given.items() if k != "step" or v != "1"}


@dataclass(frozen=True)
class Pad(_Move):
    """Zeros before and after each dimension but the samples'."""

    type: ClassVar[str] = "pad"

    before: tuple[int, ...]  # one a dimension, 0 for the samples'
    after: tuple[int, ...]

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        rank = len(inputs[0])
        fits = len(self.before) == len(self.after) == rank
        if not fits or min(*self.before, *self.after) < 0 or self.before[0] or self.after[0]:
            raise UserError(
                f"pad takes how many zeros come before and after each of {rank} dimensions, none "
                f"of the samples', but got {list(self.before)} and {list(self.after)}"
            )
        return tuple(
            extent + b + a for extent, b, a in zip(inputs[0], self.before, self.after, strict=True)
        )

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return outer_dims(len(inputs[0]))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        maps = tuple(shifted(d, -before) for d, before in enumerate(self.before))
        return (Access(maps, linear=True),)


@dataclass(frozen=True)
class Roll(_Move):
    """Element i of dimension `axis` goes to (i + shift) modulo its extent."""

    type: ClassVar[str] = "roll"

    axis: int
    shift: int

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        rank = len(inputs[0])
        if not 1 <= self.axis < rank:
            raise UserError(
                f"roll turns a dimension 1 to {rank - 1} of its input (0 is the sample), but axis "
                f"is {self.axis}"
            )
        if not 0 <= self.shift < inputs[0][self.axis]:
            raise UserError(
                f"roll shifts {inputs[0][self.axis]} elements by less than that, but got "
                f"{self.shift}"
            )
        return inputs[0]

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return outer_dims(len(inputs[0]))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        maps = [along(d) for d in range(len(inputs[0]))]
        maps[self.axis] = WHOLE
        return (Access(tuple(maps), linear=True),)


@dataclass(frozen=True)
class Take(_Move):
    """Inputs x, and `numbers` (1, m), which say what element of dimension `axis` each output is.

    Two more inputs are the same said backwards, so that gradients are sums of one order: `order`
    (1, m), the outputs sorted by their numbers, and `starts` (1, extent + 1), where among them
    those of each element begin.
    """

    type: ClassVar[str] = "take"

    axis: int

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        x, numbers, order, starts = inputs
        if not 1 <= self.axis < len(x):
            raise UserError(
                f"take picks from a dimension 1 to {len(x) - 1} of its input (0 is the sample), "
                f"but axis is {self.axis}"
            )
        if order != numbers or starts != (1, x[self.axis] + 1) or len(numbers) != 2:
            raise UserError("take's numbers, their order and starts do not fit together")
        return (*x[: self.axis], numbers[1], *x[self.axis + 1 :])

    def input_dtypes(self, inputs: Sequence[Shape]) -> Sequence[DataType]:
        return ("float32", "int32", "int32", "int32")

    def input_values(self, inputs: Sequence[Shape]) -> Sequence[Values]:
        return ("any", inputs[0][self.axis], inputs[1][1], inputs[1][1] + 1)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return outer_dims(len(inputs[0]))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        maps = [along(d) for d in range(len(inputs[0]))]
        maps[self.axis] = WHOLE
        lists = Access((WHOLE, WHOLE), saved=True)
        return (Access(tuple(maps)), lists, lists, lists)
