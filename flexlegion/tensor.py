"""Tensors: the edges of the operator graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from flexlegion.graph import Operator
    from flexlegion.initializers import Initializer

Shape = tuple[int, ...]
DataType = Literal["float32", "int32"]
TensorKind = Literal["input", "weight", "activation"]
TensorRole = Literal["input", "weight", "output"]  # for an operator

MAX_RANK = 5  # as in native/support/rect.h
MAX_EXTENT = 2**31 - 1
MAX_ELEMENTS = 2**40  # 4 TiB; as in native/plan/api.cc
# Of all tensors of a model together, a PiB: for thousands of devices, bytes are counted in 64 bits.
MAX_ELEMENTS_OF_ALL = 2**48


@dataclass(eq=False)
class Tensor:
    """A tensor of the operator graph.

    Parameters
    ----------
    name
        Unique in its graph.
    shape
        All extents. The first dimension of inputs and activations is the sample, its extent the
        global batch size; it is 1 where an operator sums up the batch.
    dtype
        Element type.
    kind
        Whether it comes from the user's data, is kept from iteration to iteration, or is computed.
    producer
        The operator that computes it; none for inputs and weights.
    requires_gradient
        Whether training computes its gradient. Weights do if they are trained; for inputs, whether
        the user asked for it; what an operator computes, if one of its inputs or weights does.
    initializer
        For weights, how their first values are drawn.
    table
        Whether it is a weight of which operators look rows up, by the numbers in their first input,
        and which nothing uses otherwise.
    state
        Whether it is a weight that its operator's forward pass reads and writes: a running average.
    """

    name: str
    shape: Shape
    dtype: DataType = "float32"
    kind: TensorKind = "activation"
    producer: Operator | None = None
    requires_gradient: bool = False
    initializer: Initializer | None = None
    table: bool = False
    state: bool = False

    @property
    def constant(self) -> bool:
        """Whether it is a weight that nothing changes: frozen, or an array that was given."""
        return self.kind == "weight" and not self.requires_gradient and not self.state

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {list(self.shape)}, {self.dtype})"
