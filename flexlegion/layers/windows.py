"""Layers of images and of sequences that look through windows: convolutions, pooling, resizing."""

from __future__ import annotations

import warnings
from typing import Literal

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import AnyInitializer, initializer
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.elementwise import ElementwiseLayers
from flexlegion.ops.conv1d import Conv1D, Pool1D
from flexlegion.ops.conv2d import Conv2D, spanned
from flexlegion.ops.conv2d_transpose import Conv2DTranspose
from flexlegion.ops.pool2d import Pool2D
from flexlegion.ops.resize2d import Resize2D

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


def _warn_of_order(layer: str, x: Tensor) -> None:
    """Say it if images given to a layer look as if their channels came first."""
    if x.kind != "input" or len(x.shape) != 4:
        return
    height, width, channels = x.shape[1:]
    if height in (1, 3, 4) and width == channels > 4:
        warnings.warn(
            f"{layer} takes images (height, width, channel), so '{x.name}' has a height of "
            f"{height} and {channels} channels; if it is meant as (channel, height, width), make "
            f"the input of shape ({width}, {channels}, {height}), and give x.transpose(0, 2, 3, 1)",
            UserWarning,
            stacklevel=4,
        )


def _check_pooling(kind: str) -> None:
    if kind not in ("max", "average"):
        raise UserError(f"unknown kind of pooling '{kind}'; use 'max' or 'average'")


@typed_methods
class WindowLayers(ElementwiseLayers):
    """The layers that look through windows."""

    def conv2d(
        self,
        x: Tensor,
        filters: int,
        kernel: Pair,
        stride: Pair = 1,
        padding: Padding = "valid",
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: AnyInitializer = "glorot_uniform",
        bias_initializer: AnyInitializer = "zeros",
        groups: int = 1,
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
        *,
        dilation: Pair = 1,
    ) -> Tensor:
        """2D convolution: (n, h, w, i) -> (n, oh, ow, filters).

        Of `groups` groups of filters, each reads as many neighbouring channels; with as many groups
        as channels, the convolution is depthwise. What a kernel reads is `dilation` positions
        apart. `share` and `trainable` as for `dense`.
        """
        name = self._name("conv2d", name)
        _warn_of_order("conv2d", x)
        kernel, stride = _positive_pair(kernel, "kernel"), _positive_pair(stride, "stride")
        apart = _positive_pair(dilation, "dilation")
        spans = spanned(kernel[0], apart[0]), spanned(kernel[1], apart[1])
        fused, separate = self._fused(activation)
        kind = Conv2D(
            self._positive(filters, "filters"),
            *kernel,
            *stride,
            *_padding(padding, spans, stride),
            self._positive(groups, "groups"),
            use_bias,
            fused,
            initializer(kernel_initializer),
            initializer(bias_initializer),
            *apart,
        )
        return self._activated(self._add(kind, x, name, share, trainable), separate, name)

    def conv2d_transpose(
        self,
        x: Tensor,
        filters: int,
        kernel: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: AnyInitializer = "glorot_uniform",
        bias_initializer: AnyInitializer = "zeros",
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
        *,
        extra: Pair = 0,
        dilation: Pair = 1,
    ) -> Tensor:
        """Transposed 2D convolution: (n, h, w, i) -> (n, oh, ow, filters).

        It enlarges images by its stride: ``oh = (h - 1) * stride - 2 * padding + (kernel - 1) *
        dilation + 1 + extra``, where `extra` is what PyTorch calls output_padding. The kernel is
        (kh, kw, filters, i). `share` and `trainable` as for `dense`.
        """
        name = self._name("conv2d_transpose", name)
        kind = Conv2DTranspose(
            self._positive(filters, "filters"),
            *_positive_pair(kernel, "kernel"),
            *_positive_pair(stride, "stride"),
            *_pair(padding, "padding"),
            *_pair(extra, "extra"),
            *_positive_pair(dilation, "dilation"),
            use_bias,
            initializer(kernel_initializer),
            initializer(bias_initializer),
        )
        self._fused(activation)
        return self._activated(self._add(kind, x, name, share, trainable), activation, name)

    def upsample2d(
        self,
        x: Tensor,
        factor: Pair = 2,
        kind: Literal["nearest", "bilinear"] = "nearest",
        align_corners: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """Images enlarged by a whole factor: (n, h, w, c) -> (n, h * factor, w * factor, c).

        "nearest" repeats positions; "bilinear" takes means of the four around each, which lie at
        the middles of their shares of the image, or, with `align_corners`, from corner to corner.
        """
        kind_ = Resize2D(kind, *_positive_pair(factor, "factor"), align_corners)
        return self._add(kind_, x, self._name("upsample2d", name))

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
        kernel_initializer: AnyInitializer = "glorot_uniform",
        bias_initializer: AnyInitializer = "zeros",
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
