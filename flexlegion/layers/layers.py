"""The layer API: one method a layer; each adds an operator to the graph and returns its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import AnyInitializer, initializer
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.batch_norm import add_moments
from flexlegion.layers.shapes import ShapeLayers
from flexlegion.ops.attention import MatMul
from flexlegion.ops.cosine import Cosine
from flexlegion.ops.dense import Dense
from flexlegion.ops.elementwise import Dropout, DropPath
from flexlegion.ops.normalization import BATCH_NORM_ACTIVATIONS, BatchNorm
from flexlegion.ops.reduce import Reduce
from flexlegion.ops.softmax import Softmax


@typed_methods
class Layers(ShapeLayers):
    """The layers of a graph under construction.

    Parameters
    ----------
    batch_size
        Extent of the sample dimension of every input.
    """

    def dense(
        self,
        x: Tensor,
        units: int,
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: AnyInitializer = "glorot_uniform",
        bias_initializer: AnyInitializer = "zeros",
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
    ) -> Tensor:
        """Fully connected: (n, ..., i) -> (n, ..., units).

        `share` is the output of a layer whose weights this one uses, too: of a dense layer of the
        same sizes, or, without a bias, of an embedding of `units` tokens. Weights that are not
        `trainable` are constant: they have no gradient, and training leaves them as they are.
        """
        name = self._name("dense", name)
        fused, separate = self._fused(activation)
        kind = Dense(
            self._positive(units, "units"),
            use_bias,
            fused,
            initializer(kernel_initializer),
            initializer(bias_initializer),
        )
        return self._activated(self._add(kind, x, name, share, trainable), separate, name)

    def cosine(
        self,
        x: Tensor,
        units: int,
        kernel_initializer: AnyInitializer = "normal",
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
    ) -> Tensor:
        """Cosine of the angle to each row of a kernel (units, i): (n, ..., i) -> (n, ..., units).

        The losses "arcface" and "cosface" train it to classify by angle. `share` and `trainable` as
        for `dense`.
        """
        kind = Cosine(self._positive(units, "units"), initializer(kernel_initializer))
        return self._add(kind, x, self._name("cosine", name), share, trainable)

    def batch_norm(
        self,
        x: Tensor,
        activation: Literal["relu", "relu6", "silu", "hardswish"] | None = None,
        epsilon: float = 1e-3,
        momentum: float = 0.1,
        name: str | None = None,
        *,
        residual: Tensor | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
    ) -> Tensor:
        """Batch normalisation over all dimensions but the last, a residual, an activation.

        Three operators: ``NAME.statistics`` takes each sample's mean and variance;
        ``NAME.moments`` combines them to those of the global batch, whatever the strategy, and
        keeps their running averages, ``NAME.moments.running_mean`` and
        ``NAME.moments.running_variance``; NAME normalises. Evaluation and prediction normalise by
        the running averages.

        Parameters
        ----------
        x
            Shape (n, ..., channel).
        activation
            None, "relu", "relu6", "silu" or "hardswish"; of the sum if there is a residual, and
            then None or "relu".
        epsilon
            Added to the variance.
        momentum
            The share of each batch in the running averages, 0 to 1.
        name
            Of the normalising operator.
        residual
            Of the shape of `x`; added to what is normalised. One pass over the memory where
            ``add`` and ``relu`` would take two more.
        share
            Output of a batch_norm whose gamma and beta this one uses, too. Its moments and running
            averages are its own.
        trainable
            False makes gamma and beta constant. Training still normalises by the batch's moments,
            and moves the running averages.

        Returns
        -------
        Tensor
            Of the shape of `x`.

        Raises
        ------
        UserError
            If an argument does not fit.
        """
        if activation is not None and activation not in BATCH_NORM_ACTIVATIONS:
            raise UserError(
                f"batch_norm's activation is None or one of {', '.join(BATCH_NORM_ACTIVATIONS)}, "
                f"but is '{activation}'"
            )
        if not 0 <= momentum <= 1:
            raise UserError(f"batch_norm's momentum has to be 0 to 1, but is {momentum}")
        kind = BatchNorm(self._epsilon(epsilon), activation or "none")
        residuals = [] if residual is None else [residual]
        # All shapes have to fit before the first of the three is added.
        kind.output_shape([x.shape, (1, 2, x.shape[-1]), *(r.shape for r in residuals)])
        name = self._name("batch_norm", name)
        moments = add_moments(self.graph, x, float(momentum), name).output
        return self.graph.add(kind, [x, moments, *residuals], name, share, trainable)

    def softmax(self, x: Tensor, name: str | None = None) -> Tensor:
        """Softmax over the last dimension."""
        return self._add(Softmax(), x, self._name("softmax", name))

    def log_softmax(self, x: Tensor, name: str | None = None) -> Tensor:
        """The logarithm of `softmax`, also where a softmax is too small for a number."""
        return self._add(Softmax(log=True), x, self._name("log_softmax", name))

    def matmul(self, a: Tensor, b: Tensor, name: str | None = None) -> Tensor:
        """Matrix products of each sample: (n, ..., i, k) x (n, ..., k, j) -> (n, ..., i, j)."""
        return self.graph.add(MatMul(), [a, b], self._name("matmul", name))

    def reduce(
        self,
        x: Tensor,
        kind: Literal["mean", "sum", "max", "amax"],
        axes: int | Sequence[int],
        keepdims: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """Mean, sum or maximum over whole dimensions of each sample.

        Parameters
        ----------
        x
            What to reduce.
        kind
            Both "max" and "amax" are maxima. The gradient of the first goes to the first element
            that has it, that of the second is shared evenly by all that have it.
        axes
            One dimension or several, not the samples'; from the end if negative.
        keepdims
            Whether they stay, with an extent of 1.
        name
            Of the operator.

        Returns
        -------
        Tensor
            The dimensions that are left.

        Raises
        ------
        UserError
            If there are no such dimensions.
        """
        if kind not in ("mean", "sum", "max", "amax"):
            raise UserError(f"unknown reduction '{kind}'; use 'mean', 'sum', 'max' or 'amax'")
        given = [axes] if isinstance(axes, int) else list(axes)
        rank = len(x.shape)
        dims = tuple(sorted({axis + rank if axis < 0 else axis for axis in given}))
        return self._add(Reduce(kind, dims, keepdims), x, self._name("reduce", name))

    def l2_normalize(
        self, x: Tensor, axis: int = -1, epsilon: float = 1e-12, name: str | None = None
    ) -> Tensor:
        """Divide by the root of the sum of squares along a dimension, or by `epsilon` if larger.

        Three operators: ``NAME.squares``, ``NAME.sum``, and NAME.
        """
        name = self._name("l2_normalize", name)
        squares = self.unary(x, "square", f"{name}.squares")
        total = self.reduce(squares, "sum", axis, keepdims=True, name=f"{name}.sum")
        formula = f"x0 * rsqrt(maximum(x1, {self._epsilon(epsilon) ** 2!r}))"
        return self._elementwise(formula, [x, total], name)

    def dropout(self, x: Tensor, rate: float, name: str | None = None) -> Tensor:
        """Zero elements with probability `rate` while training, and scale the others up."""
        kind = Dropout(self._rate(rate), len(self.graph.operators))
        return self._add(kind, x, self._name("dropout", name))

    def drop_path(self, x: Tensor, rate: float, name: str | None = None) -> Tensor:
        """Zero whole samples with probability `rate` while training, and scale the others up."""
        kind = DropPath(self._rate(rate), len(self.graph.operators))
        return self._add(kind, x, self._name("drop_path", name))
