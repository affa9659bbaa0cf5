"""Element-wise arithmetic on tensors that are broadcast to one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.graph.operator_type import (
    WHOLE,
    Access,
    Dim,
    DimKind,
    Family,
    OperatorType,
    along,
    outer_dims,
)
from flexlegion.graph.tensor import MAX_RANK, DataType, Shape
from flexlegion.ops.formula import program_of


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape that inputs are broadcast to.

    The samples go with the samples, other dimensions from the last one on; an input has them, or
    has an extent of 1, or leaves them out.

    Raises
    ------
    UserError
        If two inputs differ in an extent, and neither is 1.
    """
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for d, extent in zip(_dims_of(shape, rank), shape, strict=True):
            if extent != 1 and result[d] not in (1, extent):
                listed = " and ".join(str(list(s)) for s in dict.fromkeys(shapes))
                raise UserError(f"shapes {listed} cannot be broadcast to one another")
            result[d] = max(result[d], extent)
    return tuple(result)


def _dims_of(shape: Shape, rank: int) -> list[int]:
    """Which dimension of a tensor of that rank goes with each of an input's."""
    return [0, *range(rank - len(shape) + 1, rank)]


@dataclass(frozen=True)
class Expression(OperatorType):
    """A formula over inputs that are broadcast to one shape.

    Parameters
    ----------
    formula
        See `flexlegion.ops.formula`; input i is ``xi``.
    integers
        The inputs that are int32; they have no gradient.
    shape
        Broadcasts further: to this shape, the sample's extent included.
    """

    type: ClassVar[str] = "expression"
    family: ClassVar[Family] = "elementwise"

    formula: str
    integers: tuple[int, ...] = ()
    shape: Shape = ()

    def of_samples(self, samples: int) -> Expression:
        if not self.shape:
            return self
        return replace(self, shape=(samples, *self.shape[1:]))

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        wanted = program_of(self.formula).inputs
        if len(inputs) != wanted:
            raise UserError(
                f"formula '{self.formula}' takes {wanted} inputs, but got {len(inputs)}"
            )
        shapes = [*inputs, self.shape] if self.shape else list(inputs)
        result = broadcast(shapes)
        if len(result) > MAX_RANK:
            raise UserError(f"a tensor has at most {MAX_RANK} dimensions, but got {len(result)}")
        if self.shape and result != self.shape:
            raise UserError(
                f"shape {list(inputs[0])} cannot be broadcast to {list(self.shape)}: an extent "
                "that is not 1 stays"
            )
        return result

    def input_dtypes(self, inputs: Sequence[Shape]) -> Sequence[DataType]:
        return ["int32" if i in self.integers else "float32" for i in range(len(inputs))]

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        shape = self.output_shape(inputs)
        sample, *others = outer_dims(len(shape))
        return (sample if shape[0] > 1 else Dim("sample", DimKind.NONE), *others)

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        shape = self.output_shape(inputs)
        program = program_of(self.formula)
        read = program.read_backward(self.integers)
        return [
            Access(
                tuple(
                    along(d) if extent == shape[d] else WHOLE
                    for d, extent in zip(_dims_of(mine, len(shape)), mine, strict=True)
                ),
                saved=i in read,
                linear=program.is_multiple and i not in self.integers,
            )
            for i, mine in enumerate(inputs)
        ]

    def flops(self, inputs: Sequence[Shape]) -> int:
        return program_of(self.formula).flops * prod(self.output_shape(inputs))

    def backward_flops(self, inputs: Sequence[Shape]) -> int:
        # Values are computed again where gradients need them; each operation's slope costs two.
        program = program_of(self.formula)
        again = bool(program.read_backward(self.integers))
        return (2 + again) * self.flops(inputs)

    def attributes(self) -> dict[str, str]:
        program = program_of(self.formula)
        return {
            "inputs": str(program.inputs),
            "integers": ",".join(map(str, self.integers)),
            "program": str(program),
        }
