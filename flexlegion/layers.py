"""The layer API: one method a layer; each adds an operator to the graph and returns its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flexlegion.errors import UserError
from flexlegion.graph import Graph
from flexlegion.initializers import Initializer, initializer
from flexlegion.losses import LABELS_NAME, LOSS_NAME
from flexlegion.ops.base import OperatorType
from flexlegion.ops.conv2d import Conv2D
from flexlegion.ops.dense import Dense
from flexlegion.ops.elementwise import Dropout, Gelu, Relu, Sigmoid, Tanh
from flexlegion.ops.flatten import Flatten
from flexlegion.ops.merge import Add, Concat
from flexlegion.ops.pool2d import Pool2D
from flexlegion.ops.softmax import Softmax
from flexlegion.tensor import MAX_EXTENT, MAX_RANK, DataType, Tensor

Pair = int | tuple[int, int]
Padding = Pair | Literal["valid", "same"]

# Activations that conv2d and dense fuse: their derivative follows from the output.
_FUSED = ("relu", "sigmoid", "tanh")


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


class Layers:
    """A graph under construction.

    Parameters
    ----------
    batch_size
        Extent of the sample dimension of every input.
    """

    def __init__(self, batch_size: int) -> None:
        if not 1 <= batch_size <= MAX_EXTENT:
            raise UserError(f"the batch size has to be 1 to {MAX_EXTENT}, but is {batch_size}")
        self.batch_size = batch_size
        self.graph = Graph()

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
        name: str | None = None,
    ) -> Tensor:
        """2D convolution: (n, h, w, i) -> (n, oh, ow, filters)."""
        name = self._name("conv2d", name)
        kernel, stride = _positive_pair(kernel, "kernel"), _positive_pair(stride, "stride")
        fused, separate = self._activation(activation)
        kind = Conv2D(
            self._positive(filters, "filters"),
            *kernel,
            *stride,
            *_padding(padding, kernel, stride),
            use_bias,
            fused,
            initializer(kernel_initializer),
            initializer(bias_initializer),
        )
        return self._activated(self._add(kind, x, name), separate, name)

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
        if kind not in ("max", "average"):
            raise UserError(f"unknown kind of pooling '{kind}'; use 'max' or 'average'")
        kernel = _positive_pair(kernel, "kernel")
        stride = kernel if stride is None else _positive_pair(stride, "stride")
        padding = _padding(padding, kernel, stride)
        pool = Pool2D(kind, *kernel, *stride, *padding, count_include_pad)
        return self._add(pool, x, self._name("pool2d", name))

    def dense(
        self,
        x: Tensor,
        units: int,
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        name: str | None = None,
    ) -> Tensor:
        """Fully connected: (n, ..., i) -> (n, ..., units)."""
        name = self._name("dense", name)
        fused, separate = self._activation(activation)
        kind = Dense(
            self._positive(units, "units"),
            use_bias,
            fused,
            initializer(kernel_initializer),
            initializer(bias_initializer),
        )
        return self._activated(self._add(kind, x, name), separate, name)

    def flatten(self, x: Tensor, name: str | None = None) -> Tensor:
        """(n, d1, d2, ...) -> (n, d1*d2*...), row-major (height, width, channel)."""
        return self._add(Flatten(), x, self._name("flatten", name))

    def relu(self, x: Tensor, name: str | None = None) -> Tensor:
        """max(x, 0)."""
        return self._add(Relu(), x, self._name("relu", name))

    def sigmoid(self, x: Tensor, name: str | None = None) -> Tensor:
        """1 / (1 + exp(-x))."""
        return self._add(Sigmoid(), x, self._name("sigmoid", name))

    def tanh(self, x: Tensor, name: str | None = None) -> Tensor:
        """Hyperbolic tangent."""
        return self._add(Tanh(), x, self._name("tanh", name))

    def gelu(self, x: Tensor, name: str | None = None) -> Tensor:
        """x * Phi(x), exact."""
        return self._add(Gelu(), x, self._name("gelu", name))

    def softmax(self, x: Tensor, name: str | None = None) -> Tensor:
        """Softmax over the last dimension."""
        return self._add(Softmax(), x, self._name("softmax", name))

    def add(self, inputs: Sequence[Tensor], name: str | None = None) -> Tensor:
        """Element-wise sum of tensors of one shape."""
        return self.graph.add(Add(), inputs, self._name("add", name))

    def concat(self, inputs: Sequence[Tensor], axis: int = -1, name: str | None = None) -> Tensor:
        """Tensors one after the other along a dimension other than the samples'."""
        rank = len(inputs[0].shape) if inputs else 0
        kind = Concat(axis + rank if axis < 0 else axis)
        return self.graph.add(kind, inputs, self._name("concat", name))

    def dropout(self, x: Tensor, rate: float, name: str | None = None) -> Tensor:
        """Zero elements with probability `rate` while training, and scale the others up."""
        if not 0 <= rate < 1:
            raise UserError(f"a dropout rate has to be at least 0 and below 1, but is {rate}")
        kind = Dropout(float(rate), len(self.graph.operators))
        return self._add(kind, x, self._name("dropout", name))

    def _name(self, kind: str, name: str | None) -> str:
        if name in (LABELS_NAME, LOSS_NAME):
            raise UserError(f"the name '{name}' is taken by compile(); choose another")
        if name is not None:
            return name
        number = 1
        while self.graph.has(f"{kind}_{number}"):
            number += 1
        return f"{kind}_{number}"

    def _add(self, kind: OperatorType, x: Tensor, name: str) -> Tensor:
        return self.graph.add(kind, [x], name)

    @staticmethod
    def _positive(value: int, what: str) -> int:
        if value < 1:
            raise UserError(f"{what} has to be at least 1, but is {value}")
        if value > MAX_EXTENT:
            raise UserError(f"{what} has to be at most {MAX_EXTENT}, but is {value}")
        return value

    @staticmethod
    def _activation(activation: str | None) -> tuple[str, str | None]:
        """What the kernel fuses, and what becomes a layer of its own."""
        if activation is None:
            return "none", None
        if activation in _FUSED:
            return activation, None
        if activation in ("gelu", "softmax"):
            return "none", activation
        raise UserError(
            f"unknown activation '{activation}'; choose one of {', '.join(_FUSED)}, gelu, softmax"
        )

    def _activated(self, x: Tensor, activation: str | None, name: str) -> Tensor:
        if activation is None:
            return x
        layer = self.gelu if activation == "gelu" else self.softmax
        return layer(x, name=f"{name}.{activation}")
