"""Operations of flexlegion that PyTorch has in another form."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pytorch_functions import evaluated


def of_channels_last(
    operation: Callable[..., torch.Tensor], x: torch.Tensor, *args: Any, **options: Any
) -> torch.Tensor:
    """An operation on (n, c, h, w), applied to (n, h, w, c)."""
    return operation(x.permute(0, 3, 1, 2), *args, **options).permute(0, 2, 3, 1)


def merged(kind: str, options: dict[str, Any], xs: list[torch.Tensor]) -> torch.Tensor:
    """Several tensors joined."""
    if kind == "matmul":
        return xs[0] @ xs[1]
    if kind == "multi_head_attention":
        return attention(options, *xs)
    if kind == "rotary":
        x, cos, sin = xs
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
        if not options["interleaved"]:
            first, second = x.chunk(2, -1)
            return x * cos + torch.cat([-second, first], -1) * sin
        return x * cos + torch.stack([-second, first], -1).flatten(-2) * sin
    if kind == "elementwise":
        return evaluated(options["formula"], xs)
    if kind in ("subtract", "divide"):
        return xs[0] - xs[1] if kind == "subtract" else xs[0] / xs[1]
    if kind == "concat":
        return torch.cat(xs, options.get("axis", -1))
    return functools.reduce(operator.mul if kind == "multiply" else operator.add, xs)


def attention(
    options: dict[str, Any],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None = None,
    kept: torch.Tensor | None = None,
) -> torch.Tensor:
    """PyTorch's heads come before the positions; it has no bias of causal attention.

    Of the weights, those that are `kept` (sample, query, head, key) count.
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if kept is not None:
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        weights = weights * kept.transpose(1, 2) / (1 - options["dropout"])
        return (weights @ v).transpose(1, 2)
    causal = options.get("causal", False)
    if causal and bias is not None:
        later = torch.ones(q.shape[2], k.shape[2]).triu(1).bool()
        bias, causal = bias.masked_fill(later, -torch.inf), False
    scale = options.get("scale")
    return F.scaled_dot_product_attention(
        q, k, v, bias, is_causal=causal, scale=scale, enable_gqa=True
    ).transpose(1, 2)


def maximum(x: torch.Tensor, axes: tuple[int, ...], keepdims: bool) -> torch.Tensor:
    """Whose gradient goes to the first element that has it."""
    dims = [d % x.ndim for d in axes]
    rest = [d for d in range(x.ndim) if d not in dims]
    flat = x.permute(*rest, *sorted(dims)).flatten(len(rest))
    first = (flat == flat.amax(-1, keepdim=True)).double().argmax(-1, keepdim=True)
    shape = [1 if d in dims else n for d, n in enumerate(x.shape) if keepdims or d not in dims]
    return flat.gather(-1, first).reshape(shape)


def _transposed(
    x: torch.Tensor, options: dict[str, Any], kernel: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """PyTorch's kernel is (i, o, kh, kw), ours (kh, kw, o, i)."""
    given = {k: options[k] for k in ("stride", "padding", "dilation") if k in options}
    extra = options.get("extra", 0)
    kernel = kernel.permute(3, 2, 0, 1)
    return of_channels_last(F.conv_transpose2d, x, kernel, bias, output_padding=extra, **given)


def _upsampled(x: torch.Tensor, options: dict[str, Any], *_: Any) -> torch.Tensor:
    factor, mode = options.get("factor", 2), options.get("kind", "nearest")
    corners = {"align_corners": options.get("align_corners", False)} if mode != "nearest" else {}
    scale = tuple(map(float, factor if isinstance(factor, tuple) else (factor, factor)))
    return of_channels_last(F.interpolate, x, scale_factor=scale, mode=mode, **corners)


def _padded(x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    return F.pad(x, [n for pair in reversed(options["amounts"]) for n in pair])


# Of images: x, the options, kernel and bias.
WINDOWS: dict[str, Callable[..., torch.Tensor]] = {
    "conv2d_transpose": _transposed,
    "upsample2d": _upsampled,
}
# What moves elements, or has numbers among its options.
MOVES: dict[str, Callable[[torch.Tensor, dict[str, Any]], torch.Tensor]] = {
    "pad": _padded,
    "roll": lambda x, o: x.roll(o["shift"], o["axis"]),
    "take": lambda x, o: x.index_select(o["axis"], torch.tensor(o["numbers"]) % x.shape[o["axis"]]),
    "leaky_relu": lambda x, o: F.leaky_relu(x, o.get("slope", 0.01)),
    "elu": lambda x, o: F.elu(x, o.get("alpha", 1.0)),
}
