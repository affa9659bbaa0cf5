"""Losses: which operators compute them, what labels they take, and how several make one goal."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import note
from flexlegion.graph.graph import Graph, Operator, layer_of
from flexlegion.graph.operator_type import OperatorType
from flexlegion.graph.tensor import DataType, Shape, Tensor
from flexlegion.ops import losses as operators
from flexlegion.ops.cosine import AngularMargin
from flexlegion.ops.expression import Expression
from flexlegion.ops.formula import outermost
from flexlegion.ops.losses import LossOperator
from flexlegion.ops.shape import Rearrange, Reshape, Transpose
from flexlegion.process.together import rank

LOSS_NAME = "loss"
LABELS_NAME = "labels"
# What is trained, searched and simulated with where neither the caller nor the model says a loss.
DEFAULT_LOSS = "sparse_categorical_crossentropy"


@typed_methods
@dataclass(frozen=True)
class Read:
    """What a loss reads for an output: a tensor, behind operators of these kinds."""

    tensor: Tensor
    moves: tuple[OperatorType, ...] = ()


@dataclass(frozen=True)
class Loss:
    """What training minimises of an output: the mean of its values over a batch.

    Parameters
    ----------
    weighted
        Whether labels come with weights, which their losses are multiplied with: one a sample, or
        of sequences one a step where each has a label. They are given with the labels, as
        ``labels.weights``. The sum of the weighted losses is divided by what it is divided by
        without weights, so weights of 2 double the loss.
    """

    name: ClassVar[str]

    weighted: bool = field(default=False, kw_only=True)

    def weights(self, prediction: Shape) -> Shape:
        """Shape of the labels' weights."""
        return prediction[:1]

    def operator(self, output: Tensor) -> tuple[LossOperator, Read]:
        """The operator that computes it, and what it reads for the output."""
        raise NotImplementedError

    def labels(self, prediction: Shape) -> tuple[Shape, DataType]:
        """Shape and element type of its labels."""
        return prediction, "float32"

    def before(self) -> OperatorType | None:
        """An operator between the output and the loss's own, which reads the labels, too."""
        return None


@typed_methods
@dataclass(frozen=True)
class CategoricalCrossentropy(Loss):
    """Cross-entropy of a softmax, or of logits, with labels that are probabilities (n, ..., c).

    Of a softmax it reads the softmax's input: the two together are the numerically stable pair, and
    the gradient does not pass through the softmax. Any other output it takes to be logits. What
    only moves rows of classes, as a reshape, may stand behind the softmax.

    Parameters
    ----------
    label_smoothing
        The share of each label that is given to all classes evenly: from 0, and below 1.
    """

    name: ClassVar[str] = "categorical_crossentropy"

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise UserError(
                f"label_smoothing has to be at least 0 and below 1, but is {self.label_smoothing}"
            )

    def operator(self, output: Tensor) -> tuple[LossOperator, Read]:
        """See `Loss`."""
        kind = operators.SoftmaxCrossEntropy(float(self.label_smoothing))
        return kind, _in_rows(_before(output, "softmax"), output.shape)

    def weights(self, prediction: Shape) -> Shape:
        """See `Loss`."""
        return prediction[:-1]


@typed_methods
@dataclass(frozen=True)
class SparseCategoricalCrossentropy(CategoricalCrossentropy):
    """The same with labels that are numbers of classes, (n, ...); those of -1 do not count.

    Parameters
    ----------
    label_smoothing
        See `CategoricalCrossentropy`.
    ignore_index
        Another label that does not count: no class, as -100 or 255, or a class, as of padding.
    class_weights
        For each class, what the losses of its labels are multiplied with; from 0. The loss of a
        batch is the weighted mean: it is divided by the sum of the weights of its labels' classes,
        as in PyTorch.
    """

    name: ClassVar[str] = "sparse_categorical_crossentropy"

    ignore_index: int = field(default=-100, kw_only=True)
    class_weights: Sequence[float] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -(2**31) <= self.ignore_index < 2**31:
            raise UserError(f"ignore_index has to be a label, but is {self.ignore_index}")
        for weight in self.class_weights or ():
            if not 0 <= weight < math.inf:
                raise UserError(f"class_weights have to be numbers from 0, but one is {weight}")
        if self.class_weights is not None:
            object.__setattr__(self, "class_weights", tuple(map(float, self.class_weights)))

    def operator(self, output: Tensor) -> tuple[LossOperator, Read]:
        """See `Loss`."""
        logits = _in_rows(_before(output, "softmax"), output.shape)
        classes = output.shape[-1]
        if self.class_weights is not None and len(self.class_weights) != classes:
            raise UserError(
                f"{self.name} has class_weights of {len(self.class_weights)} classes, but the "
                f"output has {classes}"
            )
        kind = operators.CrossEntropy(
            float(self.label_smoothing),
            classes=classes,
            ignored=self.ignore_index,
            class_weights=tuple(self.class_weights or ()),
            label_weights=self.weighted,
        )
        return kind, logits

    def labels(self, prediction: Shape) -> tuple[Shape, DataType]:
        """One a row of the prediction."""
        return prediction[:-1], "int32"


@typed_methods
@dataclass(frozen=True)
class ArcFace(SparseCategoricalCrossentropy):
    """Cross-entropy of cosines (n, c) with an additive angular margin (Deng et al. 2019).

    The output are cosines, as of the layer `cosine`. The logits are `scale` cos(angle), but in
    training, of a sample's own class, `scale` cos(angle + `margin`). Evaluation has no margins.

    Parameters
    ----------
    scale
        Of all logits; above 0.
    margin
        In radians, from 0 to pi / 2; 0 for none.
    """

    name: ClassVar[str] = "arcface"
    of_angle: ClassVar[bool] = True

    scale: float = 64.0
    margin: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.scale < math.inf:
            raise UserError(f"{self.name}'s scale has to be a number above 0, but is {self.scale}")
        if not 0 <= self.margin <= math.pi / 2:
            raise UserError(
                f"{self.name}'s margin has to be from 0 to pi / 2, but is {self.margin}"
            )

    def before(self) -> OperatorType:
        """See `Loss`."""
        return AngularMargin(float(self.scale), float(self.margin), self.of_angle)


@typed_methods
@dataclass(frozen=True)
class CosFace(ArcFace):
    """The same, but a sample's own class has the logit `scale` (cos(angle) - `margin`).

    It is also known as the large margin cosine loss (Wang et al. 2018).
    """

    name: ClassVar[str] = "cosface"
    of_angle: ClassVar[bool] = False

    margin: float = 0.35


@typed_methods
@dataclass(frozen=True)
class BinaryCrossentropy(Loss):
    """Cross-entropy of two classes, of each of a sample's values, with labels from 0 to 1.

    Of a sigmoid layer it reads that layer's input, which is numerically stable. Of a layer with the
    activation "sigmoid", or a formula that is a sigmoid, it takes the probabilities, and of any
    other output logits. What only moves elements may stand behind them.

    Parameters
    ----------
    from_logits
        Whether the output are logits; None decides as above.
    positive_weight
        What the loss of a label of 1 is multiplied with, against that of a label of 0; above 0.
    """

    name: ClassVar[str] = "binary_crossentropy"

    from_logits: bool | None = None
    positive_weight: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 < self.positive_weight < math.inf:
            raise UserError(
                f"positive_weight has to be a number above 0, but is {self.positive_weight}"
            )

    def operator(self, output: Tensor) -> tuple[LossOperator, Read]:
        """See `Loss`."""
        before = Read(output) if self.from_logits else _before(output, "sigmoid")
        probabilities = before.tensor is output and (
            self.from_logits is False or (self.from_logits is None and _is_sigmoid(output))
        )
        kind = operators.BinaryCrossEntropy(
            "probabilities" if probabilities else "logits", float(self.positive_weight)
        )
        return kind, before


@typed_methods
@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """Mean over all of a sample's values of the squared difference."""

    name: ClassVar[str] = "mean_squared_error"

    def operator(self, output: Tensor) -> tuple[LossOperator, Read]:
        """See `Loss`."""
        return operators.MeanSquaredError(), Read(output)


@typed_methods
@dataclass(frozen=True)
class MeanAbsoluteError(Loss):
    """Mean over all of a sample's values of the absolute difference (L1)."""

    name: ClassVar[str] = "mean_absolute_error"

    def operator(self, output: Tensor) -> tuple[LossOperator, Read]:
        """See `Loss`."""
        return operators.MeanAbsoluteError(), Read(output)


@typed_methods
@dataclass(frozen=True)
class Huber(Loss):
    """Mean over all of a sample's values of half the squared difference, from `delta` on linear.

    Parameters
    ----------
    delta
        The difference from which on the slope is constant; above 0.
    """

    name: ClassVar[str] = "huber"

    delta: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.delta < math.inf:
            raise UserError(f"Huber's delta has to be a number above 0, but is {self.delta}")

    def operator(self, output: Tensor) -> tuple[LossOperator, Read]:
        """See `Loss`."""
        return operators.Huber(float(self.delta)), Read(output)


@typed_methods
@dataclass(frozen=True)
class Written(Loss):
    """A loss written with layers.

    Parameters
    ----------
    function
        Called with layers (`Model`'s methods for layers), the output and its labels; returns a
        tensor (n, ...), or (1, ...) of the whole batch, whose mean is minimised.
    labels_shape
        Of a sample's labels; as the output's unless given.
    labels_dtype
        "float32" or "int32".
    """

    name: ClassVar[str] = "written"

    function: Callable[[Any, Tensor, Tensor], Tensor]
    labels_shape: Shape | None = None
    labels_dtype: DataType = "float32"

    def __post_init__(self) -> None:
        if self.weighted:
            raise UserError(
                "a loss of one's own is not weighted; multiply it with an input of the model"
            )

    def labels(self, prediction: Shape) -> tuple[Shape, DataType]:
        """As they were asked for."""
        if self.labels_shape is None:
            return prediction, self.labels_dtype
        return (prediction[0], *self.labels_shape), self.labels_dtype


LOSSES: dict[str, type[Loss]] = {
    loss.name: loss
    for loss in (
        SparseCategoricalCrossentropy,
        CategoricalCrossentropy,
        ArcFace,
        CosFace,
        BinaryCrossentropy,
        MeanSquaredError,
        MeanAbsoluteError,
        Huber,
    )
}

# What `compile(loss=...)` takes for an output: beside names, a tensor whose mean is minimised, or
# what makes one.
AnyLoss = str | Loss | Tensor | Callable[[Any, Tensor, Tensor], Tensor]
# And for all of them: one for each, or by the outputs' names. Of None, an output has no loss.
Losses = AnyLoss | Sequence[AnyLoss | None] | Mapping[str, AnyLoss | None]
Weights = float | Sequence[float] | Mapping[str, float] | None


def loss_or_default(loss: Losses | None, of_model: Losses | None) -> Losses:
    """What a model is trained with: the loss that is asked for, else its own, else the default."""
    if loss is not None:
        return loss
    return DEFAULT_LOSS if of_model is None else of_model


def chosen_loss(loss: Losses | None, of_model: Losses | None, outputs: Sequence[Tensor]) -> Losses:
    """As `loss_or_default`, and a note where that is a guess.

    Outputs that are softmaxes tell by themselves what they are trained with; others do not.
    """
    chosen = loss_or_default(loss, of_model)
    guessed = loss is None and of_model is None
    if guessed and not all(map(_is_softmax, outputs)) and rank() == 0:
        note(
            f"trained with {chosen} by default, as neither the user (loss=, --loss) nor the model "
            "says a loss; its outputs are no softmaxes, so this may not be what is wanted"
        )
    return chosen


def is_named(loss: Any) -> bool:
    """Whether a loss is a name, or names by output, which files can hold."""
    several = loss.values() if isinstance(loss, Mapping) else loss
    return isinstance(loss, str) or (
        isinstance(loss, Mapping | list) and all(isinstance(one, str) for one in several)
    )


def _is_softmax(output: Tensor) -> bool:
    return output.producer is not None and output.producer.kind.type == "softmax"


def output_name(output: Tensor) -> str:
    """The name of an output's layer; of a further output of a layer, the tensor's own.

    Of an activation that a layer brings along, the layer's: ``scores``, not ``scores.softmax``.
    """
    layer = layer_of(output)
    if layer is None or output.producer is None or output.producer.output is not output:
        return output.name
    return layer.name


def check_outputs(graph: Graph, outputs: Sequence[Tensor]) -> list[str]:
    """The names of a model's outputs.

    Raises
    ------
    UserError
        If there are none, or one is not computed by the model, or given twice.
    """
    if not outputs:
        raise UserError("a model needs an output")
    for output in outputs:
        if not isinstance(output, Tensor) or output not in graph:
            raise UserError(f"the output {output!r} is no tensor of this model")
        if output.producer is None:
            raise UserError(f"the output {output.name} is computed by no layer")
    names = [output_name(output) for output in outputs]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two outputs are called '{name}'; each can be given but once")
    return names


def losses_of(graph: Graph) -> dict[str, Operator]:
    """The loss operators by the outputs' names; of a model with one output, by an empty one."""
    return {
        op.name.removeprefix(LOSS_NAME).removeprefix("."): op
        for op in graph.operators
        if op.kind.is_loss
    }


def labels_of(graph: Graph) -> dict[str, Tensor]:
    """The inputs for labels, by the outputs' names; of a model with one output, by ``labels``."""
    return {
        tensor.name.removeprefix(f"{LABELS_NAME}."): tensor
        for tensor in graph.inputs
        if is_reserved(tensor.name)
    }


def is_reserved(name: str) -> bool:
    """Whether a name is kept for what `add_losses` adds."""
    return name in (LABELS_NAME, LOSS_NAME) or name.startswith((f"{LABELS_NAME}.", f"{LOSS_NAME}."))


def weights_of(labels: str) -> str:
    """The input for weights of such labels."""
    return f"{labels}.weights"


def class_weights_of(loss: str) -> str:
    """The constant that has the classes' weights, which a loss of that name multiplies with."""
    return f"{loss}.class_weights"


def kept_weights(graph: Graph) -> list[Tensor]:
    """A graph's weights that are the model's: all but the constants of its losses."""
    return [weight for weight in graph.weights if not is_reserved(weight.name)]


def parts_of_loss(name: str) -> tuple[str, str]:
    """The operators between logits and a sparse categorical cross-entropy that is called so."""
    return f"{name}.own_logit", f"{name}.logit_statistics"


def near(name: str, names: Sequence[str]) -> str:
    """For messages: which of the names may have been meant, or else which there are."""
    close = difflib.get_close_matches(name, names, 3)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"


def _before(output: Tensor, activation: str) -> Read:
    """What an activation reads if the output is one of that kind, otherwise the output.

    Behind the activation there may be operators that move elements; behind a softmax, none that
    moves elements of its rows apart.
    """
    moves: list[OperatorType] = []
    tensor = output
    while (producer := tensor.producer) is not None:
        if producer.kind.type == activation:
            return Read(producer.inputs[0], tuple(reversed(moves)))
        if not _moves(producer) or (activation == "softmax" and not _moves_rows(producer)):
            break
        moves.append(producer.kind)
        tensor = producer.inputs[0]
    return Read(output)


def _in_rows(logits: Read, shape: Shape) -> Read:
    """With one dimension for all that are between samples and classes: what kernels read."""
    if len(shape) <= 3:
        return logits
    rows = Reshape((math.prod(shape[1:-1]), shape[-1]))
    return Read(logits.tensor, (*logits.moves, rows))


def _moves(op: Operator) -> bool:
    return isinstance(op.kind, Reshape | Transpose | Rearrange)


def _moves_rows(op: Operator) -> bool:
    """Whether an operator that moves elements moves those of the last dimension as a whole."""
    kind, before = op.kind, op.inputs[0].shape
    if len(before) < 2 or len(op.output.shape) < 2 or op.output.shape[-1] != before[-1]:
        return False
    if isinstance(kind, Transpose):
        return kind.permutation[-1] == len(kind.permutation) - 1
    if isinstance(kind, Rearrange):
        return kind.order[-1] == len(kind.extents) - 1 and kind.extents[-1] == before[-1]
    return True


def _is_sigmoid(output: Tensor) -> bool:
    """Whether an output are probabilities: another operator has the sigmoid within it."""
    producer = output.producer
    while producer is not None:
        kind = producer.kind
        function = outermost(kind.formula) if isinstance(kind, Expression) else kind.type
        if "sigmoid" in (function, getattr(kind, "activation", "")):
            return True
        if not _moves(producer) and function != "x0":  # which only expands
            return False
        producer = producer.inputs[0].producer
    return False
