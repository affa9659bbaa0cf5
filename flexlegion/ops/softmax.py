"""Softmax over the last dimension, and its logarithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.graph.operator_type import (
    WHOLE,
    Access,
    Dim,
    Family,
    OperatorType,
    along,
    outer_dims,
)
from flexlegion.graph.tensor import Shape


@dataclass(frozen=True)
class Softmax(OperatorType):
    """Input and output (n, ..., c).

    A task that computes a range of the classes reads all of them. Its share of the Jacobian's
    product is linear in its share of the output's gradient, so the sum over tasks is the whole.

    Parameters
    ----------
    log
        Whether the output is the softmax's logarithm. It is computed as such: below e^-103 a
        softmax is 0, but its logarithm is a number.
    """

    type: ClassVar[str] = "softmax"
    family: ClassVar[Family] = "normalization"

    log: bool = False

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        if len(inputs[0]) < 2:
            raise UserError(f"softmax takes at least 2 dimensions, but got {list(inputs[0])}")
        return inputs[0]

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return outer_dims(len(inputs[0]))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        outer = tuple(along(d) for d in range(len(inputs[0]) - 1))
        return (Access((*outer, WHOLE), saved=True),)

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 5 * prod(inputs[0])  # maximum, difference, exponential, sum, quotient
