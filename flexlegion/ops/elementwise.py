"""Activation functions and dropout: one element in, one element out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from flexlegion.graph.operator_type import Access, Dim, Family, OperatorType, identity, outer_dims
from flexlegion.graph.tensor import Shape


@dataclass(frozen=True)
class _ElementWise(OperatorType):
    family: ClassVar[Family] = "elementwise"
    input_saved: ClassVar[bool] = False  # the derivative comes from the input, else from the output
    output_read: ClassVar[bool] = True
    linear: ClassVar[bool] = False
    operations: ClassVar[int]  # an element

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0]

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return outer_dims(len(inputs[0]))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access(identity(len(inputs[0])), saved=self.input_saved, linear=self.linear),)

    def output_saved(self) -> bool:
        return self.output_read

    def flops(self, inputs: Sequence[Shape]) -> int:
        return self.operations * prod(inputs[0])


@dataclass(frozen=True)
class Relu(_ElementWise):
    """max(x, 0)."""

    type: ClassVar[str] = "relu"
    operations: ClassVar[int] = 1


@dataclass(frozen=True)
class Sigmoid(_ElementWise):
    """1 / (1 + exp(-x))."""

    type: ClassVar[str] = "sigmoid"
    operations: ClassVar[int] = 3


@dataclass(frozen=True)
class Tanh(_ElementWise):
    """Hyperbolic tangent."""

    type: ClassVar[str] = "tanh"
    operations: ClassVar[int] = 1


@dataclass(frozen=True)
class Gelu(_ElementWise):
    """x * Phi(x), with the normal distribution's exact Phi."""

    type: ClassVar[str] = "gelu"
    operations: ClassVar[int] = 5
    input_saved: ClassVar[bool] = True
    output_read: ClassVar[bool] = False


@dataclass(frozen=True)
class Dropout(_ElementWise):
    """Zeroes elements with probability `rate` in training, and scales the others by 1/(1-rate).

    The mask is a function of seed, layer, iteration and the element's position, so it is the same
    however the tensor is split.
    """

    type: ClassVar[str] = "dropout"
    operations: ClassVar[int] = 2
    output_read: ClassVar[bool] = False
    linear: ClassVar[bool] = True  # the mask does not depend on the values

    rate: float
    id: int

    def draws(self) -> bool:
        return self.rate > 0


@dataclass(frozen=True)
class DropPath(Dropout):
    """Dropout of whole samples (stochastic depth; Huang et al., 2016): one choice for each."""

    type: ClassVar[str] = "drop_path"
