"""What layers, poolings, attention and recurrent networks compute: see torch_functions.py."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from flexlegion.exporters.torch_functions import (
    activated,
    generator,
)

# begin


def channels_first(x: Tensor) -> Tensor:
    """(n, ..., c) as (n, c, ...)."""
    return x.movedim(-1, 1)


def channels_last(x: Tensor) -> Tensor:
    """(n, c, ...) as (n, ..., c)."""
    return x.movedim(1, -1)


def dense(
    x: Tensor, kernel: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    return activated(F.linear(x, kernel, bias), activation)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def conv2d(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None = None,
    stride_h: int = 1,
    stride_w: int = 1,
    padding_h: int = 0,
    padding_w: int = 0,
    dilation_h: int = 1,
    dilation_w: int = 1,
    activation: str = "none",
) -> Tensor:
    y = F.conv2d(
        channels_first(x),
        kernel.permute(0, 3, 1, 2),
        bias,
        (stride_h, stride_w),
        (padding_h, padding_w),
        (dilation_h, dilation_w),
        groups=x.shape[-1] // kernel.shape[-1],
    )
    return activated(channels_last(y), activation)


def conv2d_transpose(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None = None,
    stride_h: int = 1,
    stride_w: int = 1,
    padding_h: int = 0,
    padding_w: int = 0,
    extra_h: int = 0,
    extra_w: int = 0,
    dilation_h: int = 1,
    dilation_w: int = 1,
) -> Tensor:
    y = F.conv_transpose2d(
        channels_first(x),
        kernel.permute(3, 2, 0, 1).contiguous(),  # without which PyTorch has no gradient
        bias,
        (stride_h, stride_w),
        (padding_h, padding_w),
        (extra_h, extra_w),
        1,
        (dilation_h, dilation_w),
    )
    return channels_last(y)


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    activation: str = "none",
) -> Tensor:
    y = F.conv1d(channels_first(x), weight.permute(0, 2, 1), bias, stride, padding)
    return activated(channels_last(y), activation)


def pool2d(
    x: Tensor,
    kind: str,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    padding_h: int = 0,
    padding_w: int = 0,
    count_include_pad: bool = True,
) -> Tensor:
    window = (kernel_h, kernel_w), (stride_h, stride_w), (padding_h, padding_w)
    if kind == "max":
        return channels_last(F.max_pool2d(channels_first(x), *window))
    y = F.avg_pool2d(channels_first(x), *window, count_include_pad=count_include_pad)
    return channels_last(y)


def pool1d(
    x: Tensor,
    kind: str,
    kernel: int,
    stride: int,
    padding: int = 0,
    count_include_pad: bool = True,
) -> Tensor:
    if kind == "max":
        return channels_last(F.max_pool1d(channels_first(x), kernel, stride, padding))
    y = F.avg_pool1d(
        channels_first(x), kernel, stride, padding, count_include_pad=count_include_pad
    )
    return channels_last(y)


def resize2d(
    x: Tensor, kind: str, factor_h: int, factor_w: int, align_corners: bool = False
) -> Tensor:
    size = (x.shape[1] * factor_h, x.shape[2] * factor_w)
    corners = align_corners if kind == "bilinear" else None
    return channels_last(F.interpolate(channels_first(x), size, mode=kind, align_corners=corners))


def embedding(
    tokens: Tensor,
    table: Tensor,
    low: int,
    start: int = 0,
    steps: int | None = None,
    padding: int = -1,
) -> Tensor:
    """Rows of the table, which begins with row `low`; zeros for tokens of others.

    The row of the token `padding` has no gradient.
    """
    if steps is not None:
        tokens = tokens[:, start : start + steps]
    rows = tokens.long() - low
    there = (rows >= 0) & (rows < table.shape[0])
    its = padding - low if low <= padding < low + table.shape[0] else None
    found = F.embedding(rows.clamp(0, table.shape[0] - 1), table, its)
    return found * there.unsqueeze(-1)


def position_embedding(x: Tensor, table: Tensor) -> Tensor:
    return x + table


def batch_norm_statistics(x: Tensor) -> Tensor:
    """Each sample's mean and variance over its positions, (n, 2, c)."""
    positions = x.reshape(x.shape[0], -1, x.shape[-1])
    return torch.stack([positions.mean(1), positions.var(1, correction=0)], 1)


def batch_norm_moments(
    statistics: Tensor,
    *averages: Tensor,
    positions: int,
    momentum: float = 0.1,
    running: bool = True,
) -> Tensor:
    """The batch's mean and variance, (1, 2, c); moves the running averages, if there are any."""
    means, variances = statistics[:, 0], statistics[:, 1]
    mean = means.mean(0)
    variance = variances.mean(0) + means.var(0, correction=0)
    count = positions * statistics.shape[0]
    unbiased = variance * (count / max(count - 1, 1))
    with torch.no_grad():
        for average, value in zip(averages, (mean, unbiased), strict=running):
            average.lerp_(value, momentum)
    return torch.stack([mean, variance]).unsqueeze(0)


def batch_norm(
    x: Tensor,
    moments: Tensor,
    *others: Tensor,
    epsilon: float = 1e-3,
    activation: str = "none",
) -> Tensor:
    """Normalised x, plus a residual if there is one."""
    *residual, gamma, beta = others
    y = (x - moments[0, 0]) * (gamma * torch.rsqrt(moments[0, 1] + epsilon)) + beta
    for term in residual:
        y = y + term
    return activated(y, activation)


def layer_norm(
    x: Tensor,
    *affine: Tensor,
    epsilon: float = 1e-5,
    center: bool = True,
    use_scale: bool = True,
    use_bias: bool = True,
) -> Tensor:
    gamma = affine[0] if use_scale else None
    beta = affine[-1] if use_bias else None
    if center:
        return F.layer_norm(x, x.shape[-1:], gamma, beta, epsilon)
    y = F.rms_norm(x, x.shape[-1:], gamma, epsilon)
    return y if beta is None else y + beta


def group_norm(
    x: Tensor,
    *affine: Tensor,
    groups: int,
    count: int,
    epsilon: float = 1e-5,
    use_scale: bool = True,
    use_bias: bool = True,
) -> Tensor:
    """`count`: channels of the whole, of which a tile of single channels has a part."""
    gamma = affine[0] if use_scale else None
    beta = affine[-1] if use_bias else None
    its = groups * x.shape[-1] // count
    # In another layout, the gradient ended the process (PyTorch 2.13, CPU).
    y = F.group_norm(channels_first(x).contiguous(), its, gamma, beta, epsilon)
    return channels_last(y)


def multi_head_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float = 1.0,
    dropout: float = 0.0,
    key: tuple[int, ...] = (),
) -> Tensor:
    """Queries (n, s, heads, d), keys and values (n, t, groups, ...)."""
    q, k, v = (x.transpose(1, 2) for x in (queries, keys, values))
    together = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(together, 1), v.repeat_interleave(together, 1)
    scores = scale * q @ k.transpose(-2, -1)
    if bias is not None:
        scores = scores + bias
    if causal:
        s, t = scores.shape[-2:]
        later = torch.ones(s, t, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if bias is not None:  # a query that may attend to nothing does so, and has no gradient
        nothing = (scores == -math.inf).all(-1, keepdim=True)
        weights = F.softmax(scores.masked_fill(nothing, 0), -1).masked_fill(nothing, 0)
    else:
        weights = F.softmax(scores, -1)
    if dropout > 0:
        mask = torch.rand(weights.shape, generator=generator(key, q.device), device=q.device)
        weights = weights * (mask >= dropout) / (1 - dropout)
    return (weights @ v).transpose(1, 2)


def luong_attention(h: Tensor, s: Tensor, score_kernel: Tensor, kernel: Tensor) -> Tensor:
    weights = F.softmax(h @ score_kernel @ s.transpose(1, 2), -1)
    return torch.tanh(F.linear(torch.cat([weights @ s, h], -1), kernel))


def rotary(x: Tensor, cosines: Tensor, sines: Tensor, interleaved: bool) -> Tensor:
    if cosines.dim() == 3:
        cosines, sines = cosines.unsqueeze(2), sines.unsqueeze(2)
    if interleaved:
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    else:
        a, b = x.chunk(2, -1)
        turned = torch.cat([-b, a], -1)
    return x * cosines + turned * sines


def lstm(
    x: Tensor,
    *others: Tensor,
    two_biases: bool = False,
    reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Steps y, and the state after the last one, h and c."""
    *state, kernel, recurrent, bias = others[: len(others) - two_biases]
    if two_biases:
        bias = bias + others[-1]
    units = kernel.shape[0]
    recurrent = recurrent.transpose(0, 1).reshape(4 * units, -1)
    given = F.linear(x, kernel.transpose(0, 1).reshape(4 * units, -1), bias.t().reshape(-1))
    h = state[0] if state else x.new_zeros(x.shape[0], recurrent.shape[1])
    c = state[1] if state else x.new_zeros(x.shape[0], units)
    steps = []
    for step in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        i, f, g, o = (given[:, step] + F.linear(h, recurrent)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        steps.append(h)
    return torch.stack(steps[::-1] if reverse else steps, 1), h, c


def gru(x: Tensor, *others: Tensor, reverse: bool = False) -> tuple[Tensor, Tensor]:
    """Steps y, and the state after the last one."""
    *state, kernel, recurrent, bias, recurrent_bias = others
    units = kernel.shape[0]
    given = F.linear(x, kernel.transpose(0, 1).reshape(3 * units, -1), bias.t().reshape(-1))
    recurrent = recurrent.transpose(0, 1).reshape(3 * units, -1)
    h = state[0] if state else x.new_zeros(x.shape[0], units)
    steps = []
    for step in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        before = F.linear(h, recurrent, recurrent_bias.t().reshape(-1))
        (r, z, n), (hr, hz, hn) = given[:, step].chunk(3, -1), before.chunk(3, -1)
        z = torch.sigmoid(z + hz)
        h = (1 - z) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + z * h
        steps.append(h)
    return torch.stack(steps[::-1] if reverse else steps, 1), h


def top_k(x: Tensor, k: int) -> Tensor:
    """The k largest of each row; of equal ones, the first."""
    order = torch.sort(x, dim=-1, descending=True, stable=True).indices[..., :k]
    return torch.zeros_like(x).scatter(-1, order, 1.0) * x


def capacity(x: Tensor, most: int) -> Tensor:
    """Of each column, the first values that are not 0."""
    rows = x.reshape(-1, x.shape[-1])
    kept = (rows != 0).cumsum(0) <= most
    return (rows * kept).reshape(x.shape)


def experts(
    x: Tensor,
    gates: Tensor,
    up: Tensor,
    down: Tensor,
    gate: Tensor | None = None,
    activation: str = "relu",
) -> Tensor:
    """The sum of the experts' results, times the gates."""
    total = torch.zeros_like(x)
    for expert in range(up.shape[0]):
        its = gates[..., expert : expert + 1]
        inner = activated(F.linear(x, up[expert]), activation)
        if gate is not None:
            inner = inner * F.linear(x, gate[expert])
        # A gate of 0 has no gradient.
        total = total + F.linear(inner, down[expert]) * torch.where(its == 0, its.detach(), its)
    return total


def cosine(x: Tensor, kernel: Tensor) -> Tensor:
    return F.linear(F.normalize(x, dim=-1), F.normalize(kernel, dim=-1))


def angular_margin(
    cosines: Tensor, labels: Tensor, low: int, scale: float, margin: float, of_angle: bool
) -> Tensor:
    """`low`: the class of the first column."""
    numbers = torch.arange(low, low + cosines.shape[1], device=cosines.device)
    own = labels.unsqueeze(1) == numbers
    if of_angle:
        sine = torch.sqrt((1 - cosines * cosines).clamp_min(1e-12))
        moved = cosines * math.cos(margin) - sine * math.sin(margin)
        beyond = cosines - margin * math.sin(margin)
        moved = torch.where(cosines > -math.cos(margin), moved, beyond)
    else:
        moved = cosines - margin
    return scale * torch.where(own, moved, cosines)
