"""What the layer API's methods stand on: the graph under construction, names, checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import did_you_mean, unknown
from flexlegion.graph.graph import Graph
from flexlegion.graph.operator_type import OperatorType
from flexlegion.graph.tensor import MAX_EXTENT, MAX_RANK, DataType, Tensor
from flexlegion.objective.losses import check_outputs, is_reserved
from flexlegion.ops.formula import FUNCTIONS

# Activations that convolutions and dense layers fuse: their derivative follows from the output.
FUSED = ("relu", "sigmoid", "tanh")


def check_batch_size(batch_size: int) -> int:
    """The same; raise `UserError` if no iteration has so many samples."""
    if not 1 <= batch_size <= MAX_EXTENT:
        raise UserError(f"the batch size has to be 1 to {MAX_EXTENT}, but is {batch_size}")
    return batch_size


@typed_methods
class LayerBase:
    """A graph under construction.

    Parameters
    ----------
    batch_size
        Extent of the sample dimension of every input.
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = check_batch_size(batch_size)
        self.graph = Graph()
        self._outputs: list[Tensor] = []

    def input(
        self,
        shape: Sequence[int],
        dtype: DataType = "float32",
        name: str | None = None,
        requires_gradient: bool = False,
    ) -> Tensor:
        """An input of the given shape, without the sample dimension; images are (h, w, channel).

        `requires_gradient` has training compute the loss's gradient by this input as well.
        """
        if len(shape) >= MAX_RANK:
            raise UserError(
                f"an input has at most {MAX_RANK} dimensions, the samples' included, but a sample "
                f"of shape {list(shape)} makes {len(shape) + 1}"
            )
        if any(extent < 1 for extent in shape):
            raise UserError(
                f"an input's extents have to be positive, but its shape is {list(shape)}"
            )
        return self.graph.add_input(
            self._name("input", name), (self.batch_size, *shape), dtype, requires_gradient
        )

    if not TYPE_CHECKING:  # which would take any attribute for one that is there

        def __getattr__(self, name: str) -> NoReturn:
            """Say which layer may be meant by a name that there is not."""
            known = [its for its in dir(type(self)) if not its.startswith("_")]
            hint = did_you_mean(name, known)
            raise AttributeError(
                f"a {type(self).__name__} has no '{name}'{hint}", name=name, obj=self
            )

    @property
    def outputs(self) -> list[Tensor]:
        """What the model predicts, and is trained by: the last layer's output unless set."""
        if self._outputs:
            return list(self._outputs)
        if not self.graph.operators:
            raise UserError("the model has no layers")
        return [self.graph.operators[-1].output]

    def set_outputs(self, tensors: Tensor | Sequence[Tensor]) -> None:
        """Set the model's outputs: one, or several.

        Raises
        ------
        UserError
            If one is not of this model, or given twice.
        """
        outputs = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        check_outputs(self.graph, outputs)
        self._outputs = outputs

    def apply(
        self,
        kind: OperatorType,
        inputs: Sequence[Tensor],
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
    ) -> tuple[Tensor, ...]:
        """Apply an operator of any type, one of your own included.

        Parameters
        ----------
        kind
            Type and attributes; see ``docs/adding-an-operator.md``.
        inputs
            In the type's order.
        name
            Of the layer; by default its type and a number.
        share
            An output of a layer whose weights this one uses, too.
        trainable
            Whether training changes its weights.

        Returns
        -------
        tuple of Tensor
            Its outputs, the primary one first.

        Raises
        ------
        UserError
            If the inputs do not fit the operator, or the name is taken.
        """
        layer = self._name(kind.type, name)
        return tuple(self.graph.apply(kind, inputs, layer, share, trainable).outputs)

    def _name(self, kind: str, name: str | None) -> str:
        if name == "":
            raise UserError(f"the name of a {kind} is empty; give one, or leave it out")
        if name is not None and is_reserved(name):
            raise UserError(f"the name '{name}' is taken by compile(); choose another")
        if name is not None:
            return name
        number = 1
        while self.graph.has(f"{kind}_{number}"):
            number += 1
        return f"{kind}_{number}"

    def _add(
        self,
        kind: OperatorType,
        x: Tensor,
        name: str,
        share: Tensor | None = None,
        trainable: bool = True,
    ) -> Tensor:
        return self.graph.add(kind, [x], name, share, trainable)

    @staticmethod
    def _fused(activation: str | None) -> tuple[str, str | None]:
        """What a kernel fuses, and what becomes a layer of its own."""
        if activation is None:
            return "none", None
        if activation in FUSED:
            return activation, None
        if activation.lower() in ("linear", "identity", "none"):
            raise UserError(f"activation '{activation}' is none; leave the activation out")
        if activation in FUNCTIONS or activation == "softmax":
            return "none", activation
        raise unknown("activation", activation, [*FUNCTIONS, "softmax"])

    @staticmethod
    def _rate(value: float) -> float:
        if not 0 <= value < 1:
            raise UserError(f"a dropout rate has to be at least 0 and below 1, but is {value}")
        return float(value)

    @staticmethod
    def _positive(value: int, what: str) -> int:
        if value < 1:
            raise UserError(f"{what} has to be at least 1, but is {value}")
        if value > MAX_EXTENT:
            raise UserError(f"{what} has to be at most {MAX_EXTENT}, but is {value}")
        return value

    @staticmethod
    def _epsilon(value: float) -> float:
        if not 0 < value < 1:
            raise UserError(f"epsilon has to be above 0 and below 1, but is {value}")
        return float(value)
