"""Batch normalisation, as three operators, and layer normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import Constant, Initializer, Zeros
from flexlegion.graph.operator_type import (
    SAMPLE,
    WHOLE,
    Access,
    Dim,
    DimKind,
    Family,
    OperatorType,
    WeightSpec,
    along,
    identity,
    outer_dims,
)
from flexlegion.graph.tensor import Shape


def _require_channels(name: str, shape: Shape) -> None:
    if len(shape) < 2:
        raise UserError(f"{name} takes at least 2 dimensions, but got shape {list(shape)}")


@dataclass(frozen=True)
class BatchNormStatistics(OperatorType):
    """Input (n, ..., c), output (n, 2, c): each sample's mean and variance over its positions.

    The first step of batch normalisation; `BatchNormMoments` is the second.

    Parameters
    ----------
    evaluated
        Whether evaluation and prediction need them. They do not if there are running averages, and
        leave the output as it is.
    """

    type: ClassVar[str] = "batch_norm_statistics"
    family: ClassVar[Family] = "normalization"
    float32_outputs: ClassVar[tuple[str, ...]] = ("output",)

    evaluated: bool = False

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        _require_channels("batch_norm_statistics", inputs[0])
        return (inputs[0][0], 2, inputs[0][-1])

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (SAMPLE, Dim("statistic", DimKind.NONE), Dim("channel", DimKind.ATTRIBUTE))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        positions = (WHOLE,) * (len(inputs[0]) - 2)
        return (Access((along(0), *positions, along(2)), saved=True),)

    def output_saved(self) -> bool:
        return True

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 4 * prod(inputs[0])  # sum; difference, square, sum


@dataclass(frozen=True)
class BatchNormMoments(OperatorType):
    """Input (n, 2, c), output (1, 2, c): the batch's mean and variance, from its samples'.

    All samples have as many positions, so the batch's mean is the mean of the means, and its
    variance the mean of the variances plus the variance of the means, without the cancellation that
    sums of squares suffer from. Samples that only fill up a batch do not count.

    Training also moves the running averages, of shape (c), towards the batch's mean and the
    unbiased estimate of its variance: running = (1 - momentum) running + momentum batch. In
    evaluation and prediction they are the output.

    An operator of its own so that data parallelism in R parts gathers R - 1 small messages and
    broadcasts R - 1, where R (R - 1) would bring all samples' statistics to each part.

    Parameters
    ----------
    positions
        Of a sample: how many values of a channel its statistics are of.
    momentum
        The share of the batch in a running average.
    running
        Whether there are running averages. Without them, evaluation and prediction normalise by
        their own batch, too.
    """

    type: ClassVar[str] = "batch_norm_moments"
    family: ClassVar[Family] = "normalization"
    float32_outputs: ClassVar[tuple[str, ...]] = ("output",)

    positions: int
    momentum: float = 0.1
    running: bool = True

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        (statistics,) = inputs
        if len(statistics) != 3 or statistics[1] != 2:
            raise UserError(
                "batch_norm_moments takes statistics of shape (n, 2, c), but got shape "
                f"{list(statistics)}"
            )
        return (1, *statistics[1:])

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        if not self.running:
            return ()
        shape = inputs[0][-1:]
        return (
            WeightSpec("running_mean", shape, Zeros(), use="state"),
            WeightSpec("running_variance", shape, Constant(), use="state"),
        )

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (
            Dim("batch", DimKind.NONE),
            Dim("statistic", DimKind.NONE),
            Dim("channel", DimKind.ATTRIBUTE),
        )

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access((WHOLE, along(1), along(2)), saved=True),)

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access((along(2),)),) * (2 if self.running else 0)

    def output_saved(self) -> bool:
        return True

    def flops(self, inputs: Sequence[Shape]) -> int:
        # A sample and channel: two sums; the means' difference, square, sum.
        return 5 * prod(inputs[0]) // 2


# What a batch normalisation can end with, and operations an element.
BATCH_NORM_ACTIVATIONS = {"relu": 1, "relu6": 2, "silu": 4, "hardswish": 5}
# Of these, after a residual, whose sum the backward pass does not compute again: the output tells.
AFTER_RESIDUAL = ("relu",)


@dataclass(frozen=True)
class BatchNorm(OperatorType):
    """Batch normalisation (Ioffe and Szegedy 2015) of x (n, ..., c), by its moments (1, 2, c).

    Output gamma (x - mean) / sqrt(variance + epsilon) + beta, plus the third input, a residual of
    x's shape, if there is one, then the activation: one of `BATCH_NORM_ACTIVATIONS`, or after a
    residual ReLU at most; gamma and beta have shape (c).
    Each task reads the moments of its channels, so every strategy normalises by those of the global
    batch while training, and by the running averages otherwise.

    Residual and activation are no operators of their own, because they cost as much memory traffic
    as the normalisation itself.
    """

    type: ClassVar[str] = "batch_norm"
    family: ClassVar[Family] = "normalization"

    epsilon: float = 1e-3
    activation: str = "none"
    gamma_initializer: Initializer = field(default=Constant(), compare=False)
    beta_initializer: Initializer = field(default=Zeros(), compare=False)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        x, moments, *residual = inputs
        _require_channels("batch_norm", x)
        if residual and self.activation not in ("none", *AFTER_RESIDUAL):
            raise UserError(
                f"batch_norm with a residual ends with {' or '.join(AFTER_RESIDUAL)} or nothing, "
                f"but not {self.activation}"
            )
        if moments != (1, 2, x[-1]):
            raise UserError(
                f"batch_norm of shape {list(x)} takes moments of shape {[1, 2, x[-1]]}, "
                f"but got {list(moments)}"
            )
        if residual not in ([], [x]):
            raise UserError(
                f"batch_norm of shape {list(x)} takes one residual of that shape, but got "
                f"{' and '.join(str(list(shape)) for shape in residual)}"
            )
        return x

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        shape = inputs[0][-1:]
        return (
            WeightSpec("gamma", shape, self.gamma_initializer),
            WeightSpec("beta", shape, self.beta_initializer),
        )

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (*outer_dims(len(inputs[0]))[:-1], Dim("channel", DimKind.PARAMETER))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        rank = len(inputs[0])
        return (
            Access(identity(rank), saved=True),
            Access((WHOLE, WHOLE, along(rank - 1)), saved=True),
            *(Access(identity(rank)) for _ in inputs[2:]),
        )

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        channel = along(len(inputs[0]) - 1)
        beta = self.activation != "none" and not self._output_tells(inputs)
        return (Access((channel,), saved=True), Access((channel,), saved=beta))

    def output_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access(identity(len(inputs[0])), saved=self._output_tells(inputs)),)

    def _output_tells(self, inputs: Sequence[Shape]) -> bool:
        """Whether the backward pass has to read from the output what the ReLU let through.

        It follows from the input and beta, but for a residual, which that pass does not read.
        """
        return self.activation != "none" and len(inputs) > 2

    def flops(self, inputs: Sequence[Shape]) -> int:
        ends = BATCH_NORM_ACTIVATIONS.get(self.activation, 0)
        return (4 + (len(inputs) > 2) + ends) * prod(inputs[0])  # difference, two products, sum

    def backward_flops(self, inputs: Sequence[Shape]) -> int:
        # The sums for gamma, beta and moments, then the input; the residual's is a copy.
        return 2 * self.flops(inputs[:2])


@dataclass(frozen=True)
class LayerNorm(OperatorType):
    """Layer normalisation (Ba, Kiros, Hinton 2016) over the last dimension of x (n, ..., c).

    gamma and beta, of shape (c), may be left out. Without `center` the mean is taken as zero: root
    mean square normalisation (Zhang and Sennrich, 2019). The normalised dimension cannot be split.
    """

    type: ClassVar[str] = "layer_norm"
    family: ClassVar[Family] = "normalization"

    epsilon: float = 1e-5
    center: bool = True
    use_scale: bool = True
    use_bias: bool = True
    gamma_initializer: Initializer = field(default=Constant(), compare=False)
    beta_initializer: Initializer = field(default=Zeros(), compare=False)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        _require_channels("layer_norm", inputs[0])
        return inputs[0]

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        shape = inputs[0][-1:]
        gamma = WeightSpec("gamma", shape, self.gamma_initializer)
        beta = WeightSpec("beta", shape, self.beta_initializer)
        return (gamma,) * self.use_scale + (beta,) * self.use_bias

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (*outer_dims(len(inputs[0]))[:-1], Dim("channel", DimKind.NONE))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access(identity(len(inputs[0])), saved=True),)

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        gamma, beta = Access((WHOLE,), saved=True), Access((WHOLE,))
        return (gamma,) * self.use_scale + (beta,) * self.use_bias

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 8 * prod(inputs[0])  # four for the statistics, four to normalise

    def backward_flops(self, inputs: Sequence[Shape]) -> int:
        return 2 * self.flops(inputs)  # the statistics again, two sums, then the input


@dataclass(frozen=True)
class GroupNorm(OperatorType):
    """Group normalisation (Wu and He, 2018) of x (n, ..., c): over positions and neighbours.

    The channels are cut into `groups` of neighbours, each normalised by itself in each sample. With
    one channel in a group it is instance normalisation, whose channels can be split; otherwise, an
    access map cannot tell which channels share a group, and the samples alone can. gamma and beta,
    of shape (c), may be left out.
    """

    type: ClassVar[str] = "group_norm"
    family: ClassVar[Family] = "normalization"

    groups: int
    epsilon: float = 1e-5
    use_scale: bool = True
    use_bias: bool = True
    gamma_initializer: Initializer = field(default=Constant(), compare=False)
    beta_initializer: Initializer = field(default=Zeros(), compare=False)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        _require_channels("group_norm", inputs[0])
        if inputs[0][-1] % self.groups != 0:
            raise UserError(
                f"group_norm: {inputs[0][-1]} channels cannot be cut into {self.groups} groups"
            )
        return inputs[0]

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        shape = inputs[0][-1:]
        gamma = WeightSpec("gamma", shape, self.gamma_initializer)
        beta = WeightSpec("beta", shape, self.beta_initializer)
        return (gamma,) * self.use_scale + (beta,) * self.use_bias

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        sample, *positions, _ = outer_dims(len(inputs[0]))
        channel = DimKind.PARAMETER if self._splits_channels(inputs) else DimKind.NONE
        inner = (Dim(dim.name, DimKind.NONE) for dim in positions)
        return (sample, *inner, Dim("channel", channel))

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        return (Access(identity(len(inputs[0])), saved=True),)

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        channel = along(len(inputs[0]) - 1)
        gamma, beta = Access((channel,), saved=True), Access((channel,))
        return (gamma,) * self.use_scale + (beta,) * self.use_bias

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 8 * prod(inputs[0])  # as layer normalisation

    def backward_flops(self, inputs: Sequence[Shape]) -> int:
        return 2 * self.flops(inputs)

    def _splits_channels(self, inputs: Sequence[Shape]) -> bool:
        return self.groups == inputs[0][-1]
