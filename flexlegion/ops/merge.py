"""Operators that join several tensors: element-wise sum and product, and concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.graph.operator_type import (
    Access,
    Dim,
    DimMap,
    Family,
    OperatorType,
    along,
    identity,
    outer_dims,
)
from flexlegion.graph.tensor import Shape


def _several(name: str, inputs: Sequence[Shape]) -> None:
    if len(inputs) < 2:
        raise UserError(f"{name} takes at least 2 inputs, but got {len(inputs)}")


def _same_shape(name: str, inputs: Sequence[Shape]) -> Shape:
    _several(name, inputs)
    for shape in inputs[1:]:
        if shape != inputs[0]:
            raise UserError(
                f"{name} takes inputs of one shape, but got "
                f"{' and '.join(str(list(s)) for s in (inputs[0], shape))}"
            )
    return inputs[0]


@dataclass(frozen=True)
class Add(OperatorType):
    """Element-wise sum of inputs of one shape."""

    type: ClassVar[str] = "add"
    family: ClassVar[Family] = "elementwise"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return _same_shape("add", inputs)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return outer_dims(len(inputs[0]))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return [Access(identity(len(shape)), linear=True) for shape in inputs]

    def flops(self, inputs: Sequence[Shape]) -> int:
        return (len(inputs) - 1) * prod(inputs[0])

    def backward_flops(self, inputs: Sequence[Shape]) -> int:
        return 0  # copies


@dataclass(frozen=True)
class Multiply(OperatorType):
    """Element-wise product of two inputs of one shape."""

    type: ClassVar[str] = "multiply"
    family: ClassVar[Family] = "elementwise"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return _same_shape("multiply", inputs)

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return outer_dims(len(inputs[0]))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        access = Access(identity(len(inputs[0])), saved=True)
        return [replace(access, linear=True), access]

    def flops(self, inputs: Sequence[Shape]) -> int:
        return prod(inputs[0])

    def backward_flops(self, inputs: Sequence[Shape]) -> int:
        return 2 * self.flops(inputs)


@dataclass(frozen=True)
class Concat(OperatorType):
    """Inputs one after the other along dimension `axis`; the other extents are equal.

    A task reads of each input what falls into its tile, which may be nothing.
    """

    type: ClassVar[str] = "concat"
    family: ClassVar[Family] = "copy"

    axis: int

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        _several("concat", inputs)
        rank = len(inputs[0])
        if not 1 <= self.axis < rank:
            raise UserError(
                f"concat joins along a dimension 1 to {rank - 1} of its inputs (0 is the sample), "
                f"but axis is {self.axis}"
            )
        for shape in inputs[1:]:
            others = [list(s[: self.axis]) + list(s[self.axis + 1 :]) for s in (inputs[0], shape)]
            if len(shape) != rank or others[0] != others[1]:
                raise UserError(
                    f"concat takes inputs that differ in dimension {self.axis} alone, but got "
                    f"{' and '.join(str(list(s)) for s in (inputs[0], shape))}"
                )
        extent = sum(shape[self.axis] for shape in inputs)
        return (*inputs[0][: self.axis], extent, *inputs[0][self.axis + 1 :])

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return outer_dims(len(inputs[0]))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        accesses, offset = [], 0
        for shape in inputs:
            maps = [along(d) for d in range(len(shape))]
            maps[self.axis] = DimMap(self.axis, lo_offset=-offset, hi_offset=-offset)
            accesses.append(Access(tuple(maps), linear=True))
            offset += shape[self.axis]
        return accesses

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 0
