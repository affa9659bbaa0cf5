"""Convolutions and largest values of three dimensions, by operations of fewer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def conv3d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor:
    """A product of windows that do not overlap; else a sum of convolutions of two dimensions.

    These are of images whose columns are rows and columns, one for each row of the kernel: every
    window is computed, and those that begin within the rows, at the strides, are taken.
    """
    kernel = list(weight.shape[2:])
    stride, dilation = _three(stride), _three(dilation)
    ends = [(n, n) for n in _three(0 if isinstance(padding, str) else padding)]
    if padding == "same":  # what is odd comes at the end
        spans = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        ends = [(span // 2, span - span // 2) for span in spans]
    if any(map(any, ends)):
        x = _padded(x, ends)
    spans = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if kernel == stride and groups == 1 and dilation == [1, 1, 1]:
        for d, k in enumerate(kernel, 2):
            x = x.narrow(d, 0, x.shape[d] // k * k)
        for d, k in enumerate(kernel):
            at = 2 + 2 * d
            x = x.reshape([*x.shape[:at], x.shape[at] // k, k, *x.shape[at + 1 :]])
        # (n, c, d, kd, h, kh, w, kw): places in a window come last.
        windows = x.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4)
        return F.linear(windows, weight.flatten(1), bias).movedim(-1, 1)
    rows, columns = x.shape[3:]
    left = rows - spans[1]
    flat = x.flatten(3)
    result: Any = None
    for row in range(kernel[1]):
        part = flat.narrow(3, row * dilation[1] * columns, left * columns)
        own = None if row else bias
        one = F.conv2d(
            part, weight[:, :, :, row], own, [stride[0], 1], 0, [dilation[0], dilation[2]], groups
        )
        result = one if result is None else result + one
    dropped = result.narrow(3, 0, spans[2])  # whatever it is, no window begins there
    image: torch.Tensor = torch.cat([result, dropped], 3) if spans[2] else result
    image = image.reshape([*image.shape[:3], left, columns])
    return image[:, :, :, :: stride[1], : columns - spans[2] : stride[2]]


def max_pool3d(
    x: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> torch.Tensor:
    """Of each dimension by itself, the larger of two places, and so on.

    Of equal ones, it is the first, as in PyTorch. What is padded reads the nearest element again,
    which is in the same window.
    """
    kernel = _three(kernel_size)
    strides = _three(stride) if stride not in (None, []) else kernel
    sizes = zip(kernel, strides, _three(padding), _three(dilation), strict=True)
    for d, (k, s, p, by) in reversed([*enumerate(sizes, x.ndim - 3)]):
        extent, span = x.shape[d], by * (k - 1) + 1
        room = extent + 2 * p - span
        count = (-(-room // s) if ceil_mode else room // s) + 1
        if ceil_mode and (count - 1) * s >= extent + p:
            count -= 1  # it would begin in what is padded at the end
        largest: Any = None
        for place in range(k):
            numbers = []
            for window in range(count):
                at = window * s - p + place * by
                if at < 0:
                    at %= by
                if at >= extent:
                    at -= ((at - extent) // by + 1) * by
                numbers.append(at)
            one = x.index_select(d, torch.tensor(numbers, device=x.device))
            if largest is None:
                largest = one
            else:
                larger = (one > largest) | (one != one)
                largest = torch.where(larger, one, largest)
        x = largest
    return x


def _padded(x: torch.Tensor, ends: list[tuple[int, int]]) -> torch.Tensor:
    """With zeros before and after each dimension.

    They are joined to it: to pad, PyTorch would ask how many samples there are.
    """
    for d, amounts in enumerate(ends, 2):
        shape = [*x.shape[1:]]
        parts = [x]
        for amount, place in zip(amounts, (0, 2), strict=True):
            if amount:
                shape[d - 1] = amount
                zeros = torch.zeros(1, *shape, dtype=x.dtype, device=x.device)
                parts.insert(place, zeros.expand(x.shape[0], *shape))
        x = torch.cat(parts, d) if len(parts) > 1 else x
    return x


def _three(value: Any) -> list[int]:
    given = list(value) if isinstance(value, list | tuple) else [value]
    return given * 3 if len(given) == 1 else given
