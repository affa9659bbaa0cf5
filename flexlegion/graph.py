"""The operator graph G (FlexFlow, section 3.1): operators, joined by tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from flexlegion.errors import UserError
from flexlegion.ops.base import Access, Dim, OperatorType, identity
from flexlegion.tensor import DataType, Shape, Tensor


@dataclass(eq=False)
class Operator:
    """A node of the graph: an operator type applied to tensors."""

    name: str
    kind: OperatorType
    inputs: list[Tensor]
    weights: list[Tensor]
    output: Tensor

    @property
    def input_shapes(self) -> list[Shape]:
        """Shapes of the inputs."""
        return [tensor.shape for tensor in self.inputs]

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The parallelizable dimensions: one entry a dimension of the output."""
        return self.kind.dims(self.input_shapes)

    @property
    def operands(self) -> list[tuple[str, Tensor, Access]]:
        """Role, tensor and access of every operand: inputs, weights, output."""
        inputs = self.kind.input_access(self.input_shapes)
        weights = self.kind.weight_access(self.input_shapes)
        output = Access(identity(len(self.output.shape)), saved=self.kind.output_saved())
        return [
            *(("input", t, a) for t, a in zip(self.inputs, inputs, strict=True)),
            *(("weight", t, a) for t, a in zip(self.weights, weights, strict=True)),
            ("output", self.output, output),
        ]


@dataclass
class Graph:
    """Operators in topological order (the order in which they were added), and their tensors."""

    tensors: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)

    def add_input(
        self, name: str, shape: Shape, dtype: DataType, requires_gradient: bool = False
    ) -> Tensor:
        """Add a tensor that the user's data fill."""
        self._check_new(name)
        if dtype not in get_args(DataType):
            choices = " or ".join(get_args(DataType))
            raise UserError(f"input '{name}' has type {dtype}, but only {choices} are possible")
        tensor = Tensor(name, shape, dtype, "input", requires_gradient=requires_gradient)
        self.tensors.append(tensor)
        return tensor

    def add(self, kind: OperatorType, inputs: Sequence[Tensor], name: str) -> Tensor:
        """Apply an operator to tensors of this graph.

        Returns
        -------
        Tensor
            Its output.

        Raises
        ------
        UserError
            If the inputs do not fit the operator, or the name is taken.
        """
        self._check_new(name)
        for tensor in inputs:
            if tensor not in self.tensors:
                raise UserError(f"operator '{name}': input {tensor!r} belongs to another model")
        shapes = [tensor.shape for tensor in inputs]
        for tensor, expected in zip(inputs, kind.input_dtypes(shapes), strict=True):
            if tensor.dtype != expected:
                raise UserError(
                    f"operator '{name}' takes {expected} values, but {tensor.name} has "
                    f"{tensor.dtype}"
                )
        try:
            shape = kind.output_shape(shapes)
        except UserError as e:
            raise UserError(f"operator '{name}': {e}") from None
        weights = [
            Tensor(f"{name}.{w.name}", w.shape, "float32", "weight", None, True, w.initializer)
            for w in kind.weights(shapes)
        ]
        output = Tensor(f"{name}.output", shape, kind.output_dtype())
        operator = Operator(name, kind, list(inputs), weights, output)
        output.producer = operator
        self.tensors += [*weights, output]
        self.operators.append(operator)
        return output

    def copy(self) -> Graph:
        """A graph of the same nodes that can be extended without changing this one."""
        return Graph(list(self.tensors), list(self.operators))

    @property
    def inputs(self) -> list[Tensor]:
        """Tensors that the user's data fill."""
        return [tensor for tensor in self.tensors if tensor.kind == "input"]

    @property
    def weights(self) -> list[Tensor]:
        """Tensors that are trained."""
        return [tensor for tensor in self.tensors if tensor.kind == "weight"]

    def has(self, name: str) -> bool:
        """Whether an operator or an input has that name."""
        return any(op.name == name for op in self.operators) or any(
            tensor.name == name for tensor in self.inputs
        )

    def _check_new(self, name: str) -> None:
        if self.has(name):
            raise UserError(f"the name '{name}' is taken; names have to be unique in a model")
