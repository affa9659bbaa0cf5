"""The layer API: one method a layer; each adds an operator to the graph and returns its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flexlegion.errors import UserError
from flexlegion.expert_layers import ExpertLayers
from flexlegion.initializers import Initializer, initializer
from flexlegion.ops.attention import MatMul
from flexlegion.ops.conv1d import Conv1D, Pool1D
from flexlegion.ops.conv2d import Conv2D
from flexlegion.ops.cosine import Cosine
from flexlegion.ops.dense import Dense
from flexlegion.ops.elementwise import Dropout, DropPath
from flexlegion.ops.flatten import Flatten
from flexlegion.ops.merge import Concat
from flexlegion.ops.normalization import BatchNorm
from flexlegion.ops.pool2d import Pool2D
from flexlegion.ops.reduce import Reduce
from flexlegion.ops.shape import Reshape, Slice, Transpose
from flexlegion.ops.softmax import Softmax
from flexlegion.tensor import MAX_RANK, Tensor
from flexlegion.transforms.batch_norm import add_moments

Pair = int | tuple[int, int]
Padding = Pair | Literal["valid", "same"]


def _pair(value: Pair, what: str) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or any(v < 0 for v in pair):
        raise UserError(f"{what} has to be one or two numbers, but is {value}")
    return pair


def _positive_pair(value: Pair, what: str) -> tuple[int, int]:
    pair = _pair(value, what)
    if min(pair) < 1:
        raise UserError(f"{what} has to be positive, but is {value}")
    return pair


def _padding(value: Padding, kernel: tuple[int, int], stride: tuple[int, int]) -> tuple[int, int]:
    if value == "valid":
        return (0, 0)
    if value == "same":
        if any(k % 2 == 0 for k in kernel) or stride != (1, 1):
            raise UserError(
                f"padding 'same' needs odd kernels and stride 1, but the kernel is {kernel} and "
                f"the stride {stride}; give the padding as numbers"
            )
        return (kernel[0] // 2, kernel[1] // 2)
    if isinstance(value, str):
        raise UserError(f"unknown padding '{value}'; use 'valid', 'same', or numbers")
    return _pair(value, "padding")


def _check_pooling(kind: str) -> None:
    if kind not in ("max", "average"):
        raise UserError(f"unknown kind of pooling '{kind}'; use 'max' or 'average'")


class Layers(ExpertLayers):
    """The layers of a graph under construction.

    Parameters
    ----------
    batch_size
        Extent of the sample dimension of every input.
    """

    def conv2d(
        self,
        x: Tensor,
        filters: int,
        kernel: Pair,
        stride: Pair = 1,
        padding: Padding = "valid",
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        groups: int = 1,
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
    ) -> Tensor:
        """2D convolution: (n, h, w, i) -> (n, oh, ow, filters).

        Of `groups` groups of filters, each reads as many neighbouring channels; with as many groups
        as channels, the convolution is depthwise. `share` and `trainable` as for `dense`.
        """
        name = self._name("conv2d", name)
        kernel, stride = _positive_pair(kernel, "kernel"), _positive_pair(stride, "stride")
        fused, separate = self._fused(activation)
        kind = Conv2D(
            self._positive(filters, "filters"),
            *kernel,
            *stride,
            *_padding(padding, kernel, stride),
            self._positive(groups, "groups"),
            use_bias,
            fused,
            initializer(kernel_initializer),
            initializer(bias_initializer),
        )
        return self._activated(self._add(kind, x, name, share, trainable), separate, name)

    def pool2d(
        self,
        x: Tensor,
        kernel: Pair,
        stride: Pair | None = None,
        padding: Padding = "valid",
        kind: Literal["max", "average"] = "max",
        count_include_pad: bool = True,
        name: str | None = None,
    ) -> Tensor:
        """2D pooling; the stride is the kernel's size unless given."""
        _check_pooling(kind)
        kernel = _positive_pair(kernel, "kernel")
        stride = kernel if stride is None else _positive_pair(stride, "stride")
        padding = _padding(padding, kernel, stride)
        pool = Pool2D(kind, *kernel, *stride, *padding, count_include_pad)
        return self._add(pool, x, self._name("pool2d", name))

    def conv1d(
        self,
        x: Tensor,
        filters: int,
        kernel: int,
        stride: int = 1,
        padding: int | Literal["valid", "same"] = "valid",
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
    ) -> Tensor:
        """1D convolution: (n, l, i) -> (n, ol, filters); `share` and `trainable` as for `dense`."""
        name = self._name("conv1d", name)
        size, step = self._positive(kernel, "kernel"), self._positive(stride, "stride")
        fused, separate = self._fused(activation)
        kind = Conv1D(
            self._positive(filters, "filters"),
            size,
            step,
            _padding(padding, (size, size), (step, step))[0],
            use_bias,
            fused,
            initializer(kernel_initializer),
            initializer(bias_initializer),
        )
        return self._activated(self._add(kind, x, name, share, trainable), separate, name)

    def pool1d(
        self,
        x: Tensor,
        kernel: int,
        stride: int | None = None,
        padding: int | Literal["valid", "same"] = "valid",
        kind: Literal["max", "average"] = "max",
        count_include_pad: bool = True,
        name: str | None = None,
    ) -> Tensor:
        """1D pooling over (n, l, c); the stride is the kernel's size unless given."""
        _check_pooling(kind)
        size = self._positive(kernel, "kernel")
        step = size if stride is None else self._positive(stride, "stride")
        pad = _padding(padding, (size, size), (step, step))[0]
        pool = Pool1D(kind, size, step, pad, count_include_pad)
        return self._add(pool, x, self._name("pool1d", name))

    def dense(
        self,
        x: Tensor,
        units: int,
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
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
        kernel_initializer: str | Initializer = "normal",
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
        activation: Literal["relu"] | None = None,
        epsilon: float = 1e-3,
        momentum: float = 0.1,
        name: str | None = None,
        *,
        residual: Tensor | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
    ) -> Tensor:
        """Batch normalisation over all dimensions but the last, plus a residual, then ReLU.

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
            None or "relu", of the sum if there is a residual.
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
        if activation not in (None, "relu"):
            raise UserError(f"batch_norm's activation is None or 'relu', but is '{activation}'")
        if not 0 <= momentum <= 1:
            raise UserError(f"batch_norm's momentum has to be 0 to 1, but is {momentum}")
        kind = BatchNorm(self._epsilon(epsilon), activation or "none")
        residuals = [] if residual is None else [residual]
        # All shapes have to fit before the first of the three is added.
        kind.output_shape([x.shape, (1, 2, x.shape[-1]), *(r.shape for r in residuals)])
        name = self._name("batch_norm", name)
        moments = add_moments(self.graph, x, float(momentum), name).output
        return self.graph.add(kind, [x, moments, *residuals], name, share, trainable)

    def flatten(self, x: Tensor, name: str | None = None) -> Tensor:
        """(n, d1, d2, ...) -> (n, d1*d2*...), row-major (height, width, channel)."""
        return self._add(Flatten(), x, self._name("flatten", name))

    def softmax(self, x: Tensor, name: str | None = None) -> Tensor:
        """Softmax over the last dimension."""
        return self._add(Softmax(), x, self._name("softmax", name))

    def matmul(self, a: Tensor, b: Tensor, name: str | None = None) -> Tensor:
        """Matrix products of each sample: (n, ..., i, k) x (n, ..., k, j) -> (n, ..., i, j)."""
        return self.graph.add(MatMul(), [a, b], self._name("matmul", name))

    def reshape(self, x: Tensor, shape: Sequence[int], name: str | None = None) -> Tensor:
        """Samples of another shape with as many elements, row-major.

        ``(n, ...)`` becomes ``(n, *shape)``.
        """
        if not 1 <= len(shape) < MAX_RANK or any(extent < 1 for extent in shape):
            raise UserError(
                f"reshape takes a sample's shape of 1 to {MAX_RANK - 1} positive extents, "
                f"but got {list(shape)}"
            )
        return self._add(Reshape(tuple(shape)), x, self._name("reshape", name))

    def transpose(self, x: Tensor, permutation: Sequence[int], name: str | None = None) -> Tensor:
        """Dimensions in another order; the sample (0) stays first.

        Dimension d of the output is dimension ``permutation[d]`` of `x`: with (0, 2, 1),
        (n, i, j) -> (n, j, i).
        """
        return self._add(Transpose(tuple(permutation)), x, self._name("transpose", name))

    def split(
        self, x: Tensor, sizes: Sequence[int], axis: int = -1, name: str | None = None
    ) -> list[Tensor]:
        """Parts of a dimension other than the samples', one after the other.

        Parameters
        ----------
        x
            What to split.
        sizes
            Extent of each part; together the dimension's.
        axis
            The dimension.
        name
            The parts, an operator of type slice each, are called ``NAME.0``, ``NAME.1``, ...

        Returns
        -------
        list[Tensor]
            The parts.

        Raises
        ------
        UserError
            If the sizes do not add up, or there is no such dimension.
        """
        rank = len(x.shape)
        axis = axis + rank if axis < 0 else axis
        if not 1 <= axis < rank:
            raise UserError(f"split takes an axis 1 to {rank - 1} of its input, but got {axis}")
        if not sizes or min(sizes) < 1 or sum(sizes) != x.shape[axis]:
            raise UserError(
                f"split takes positive sizes that add up to {x.shape[axis]}, the extent of "
                f"dimension {axis}, but got {list(sizes)}"
            )
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [
            self._add(
                Slice(axis, start, size), x, self._name("slice", f"{name}.{i}" if name else None)
            )
            for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
        ]

    def concat(self, inputs: Sequence[Tensor], axis: int = -1, name: str | None = None) -> Tensor:
        """Tensors one after the other along a dimension other than the samples'."""
        rank = len(inputs[0].shape) if inputs else 0
        kind = Concat(axis + rank if axis < 0 else axis)
        return self.graph.add(kind, inputs, self._name("concat", name))

    def reduce(
        self,
        x: Tensor,
        kind: Literal["mean", "sum", "max"],
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
            A maximum's gradient goes to the first element that has it.
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
        if kind not in ("mean", "sum", "max"):
            raise UserError(f"unknown reduction '{kind}'; use 'mean', 'sum' or 'max'")
        given = [axes] if isinstance(axes, int) else list(axes)
        rank = len(x.shape)
        dims = tuple(sorted({axis + rank if axis < 0 else axis for axis in given}))
        return self._add(Reduce(kind, dims, keepdims), x, self._name("reduce", name))

    def dropout(self, x: Tensor, rate: float, name: str | None = None) -> Tensor:
        """Zero elements with probability `rate` while training, and scale the others up."""
        kind = Dropout(self._rate(rate), len(self.graph.operators))
        return self._add(kind, x, self._name("dropout", name))

    def drop_path(self, x: Tensor, rate: float, name: str | None = None) -> Tensor:
        """Zero whole samples with probability `rate` while training, and scale the others up."""
        kind = DropPath(self._rate(rate), len(self.graph.operators))
        return self._add(kind, x, self._name("drop_path", name))

    def _activated(self, x: Tensor, activation: str | None, name: str) -> Tensor:
        if activation is None:
            return x
        name = f"{name}.{activation}"
        return self.softmax(x, name) if activation == "softmax" else self.unary(x, activation, name)
