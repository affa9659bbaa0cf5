"""What layers, poolings, attention and recurrent networks compute: see jax_functions.py."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from flexlegion.exporters.jax_functions import activated

# begin


def dense(x: Array, kernel: Array, *bias: Array, activation: str = "none") -> Array:
    return activated(sum(bias, x @ kernel.T), activation)


def matmul(a: Array, b: Array) -> Array:
    return a @ b


def conv2d(
    x: Array,
    kernel: Array,
    *bias: Array,
    stride_h: int = 1,
    stride_w: int = 1,
    padding_h: int = 0,
    padding_w: int = 0,
    dilation_h: int = 1,
    dilation_w: int = 1,
    activation: str = "none",
) -> Array:
    y = lax.conv_general_dilated(
        x,
        kernel,
        (stride_h, stride_w),
        [(padding_h, padding_h), (padding_w, padding_w)],
        rhs_dilation=(dilation_h, dilation_w),
        dimension_numbers=("NHWC", "OHWI", "NHWC"),
        feature_group_count=x.shape[-1] // kernel.shape[-1],
    )
    return activated(sum(bias, y), activation)


def conv2d_transpose(
    x: Array,
    kernel: Array,
    *bias: Array,
    stride_h: int = 1,
    stride_w: int = 1,
    padding_h: int = 0,
    padding_w: int = 0,
    extra_h: int = 0,
    extra_w: int = 0,
    dilation_h: int = 1,
    dilation_w: int = 1,
) -> Array:
    around = [
        ((size - 1) * dilation - padding, (size - 1) * dilation - padding + extra)
        for size, dilation, padding, extra in (
            (kernel.shape[0], dilation_h, padding_h, extra_h),
            (kernel.shape[1], dilation_w, padding_w, extra_w),
        )
    ]
    y = lax.conv_general_dilated(
        x,
        kernel[::-1, ::-1],
        (1, 1),
        around,
        lhs_dilation=(stride_h, stride_w),
        rhs_dilation=(dilation_h, dilation_w),
        dimension_numbers=("NHWC", "HWOI", "NHWC"),
    )
    return sum(bias, y)


def conv1d(
    x: Array,
    weight: Array,
    *bias: Array,
    stride: int = 1,
    padding: int = 0,
    activation: str = "none",
) -> Array:
    y = lax.conv_general_dilated(
        x, weight, (stride,), [(padding, padding)], dimension_numbers=("NWC", "OWI", "NWC")
    )
    return activated(sum(bias, y), activation)


def pooled(
    x: Array,
    kind: str,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    count_include_pad: bool,
) -> Array:
    """Windows over all dimensions but samples and channels."""
    window, steps = (1, *kernel, 1), (1, *stride, 1)
    around = [(0, 0), *((p, p) for p in padding), (0, 0)]
    if kind == "max":
        return lax.reduce_window(x, -jnp.inf, lax.max, window, steps, around)
    total = lax.reduce_window(x, 0.0, lax.add, window, steps, around)
    if count_include_pad:
        return total / math.prod(kernel)
    return total / lax.reduce_window(jnp.ones_like(x), 0.0, lax.add, window, steps, around)


def pool2d(
    x: Array,
    kind: str,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    padding_h: int = 0,
    padding_w: int = 0,
    count_include_pad: bool = True,
) -> Array:
    sizes = (kernel_h, kernel_w), (stride_h, stride_w), (padding_h, padding_w)
    return pooled(x, kind, *sizes, count_include_pad)


def pool1d(
    x: Array,
    kind: str,
    kernel: int,
    stride: int,
    padding: int = 0,
    count_include_pad: bool = True,
) -> Array:
    return pooled(x, kind, (kernel,), (stride,), (padding,), count_include_pad)


def embedding(
    tokens: Array, table: Array, start: int = 0, steps: int | None = None, padding: int = -1
) -> Array:
    """Rows of the table; that of the token `padding` has no gradient."""
    tokens = tokens if steps is None else tokens[:, start : start + steps]
    rows = table[tokens]
    if padding < 0:
        return rows
    return jnp.where((tokens == padding)[..., None], lax.stop_gradient(rows), rows)


def position_embedding(x: Array, table: Array) -> Array:
    return x + table


def batch_norm_statistics(x: Array) -> Array:
    """Each sample's mean and variance over its positions, (n, 2, c)."""
    positions = x.reshape(x.shape[0], -1, x.shape[-1])
    return jnp.stack([positions.mean(1), positions.var(1)], 1)


def batch_norm_moments(
    statistics: Array,
    *averages: Array,
    positions: int,
    momentum: float = 0.1,
    running: bool = True,
) -> Any:
    """The batch's mean and variance, (1, 2, c), and the running averages, if there are any."""
    means, variances = statistics[:, 0], statistics[:, 1]
    mean, variance = means.mean(0), variances.mean(0) + means.var(0)
    count = positions * statistics.shape[0]
    unbiased = variance * (count / max(count - 1, 1))
    result = jnp.stack([mean, variance])[None]
    if not running:
        return result
    moved = (
        lax.stop_gradient((1 - momentum) * average + momentum * value)
        for average, value in zip(averages, (mean, unbiased), strict=True)
    )
    return (result, *moved)


def batch_norm(
    x: Array, moments: Array, *others: Array, epsilon: float = 1e-3, activation: str = "none"
) -> Array:
    """Normalised x, plus a residual if there is one."""
    *residual, gamma, beta = others
    y = (x - moments[0, 0]) * (gamma * lax.rsqrt(moments[0, 1] + epsilon)) + beta
    return activated(sum(residual, y), activation)


def layer_norm(
    x: Array,
    *affine: Array,
    epsilon: float = 1e-5,
    center: bool = True,
    use_scale: bool = True,
    use_bias: bool = True,
) -> Array:
    if center:
        x = x - x.mean(-1, keepdims=True)
    y = x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon)
    y = y * affine[0] if use_scale else y
    return y + affine[-1] if use_bias else y


def group_norm(
    x: Array,
    *affine: Array,
    groups: int,
    epsilon: float = 1e-5,
    use_scale: bool = True,
    use_bias: bool = True,
) -> Array:
    cut = x.reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
    mean, variance = cut.mean((1, 3), keepdims=True), cut.var((1, 3), keepdims=True)
    y = ((cut - mean) * lax.rsqrt(variance + epsilon)).reshape(x.shape)
    y = y * affine[0] if use_scale else y
    return y + affine[-1] if use_bias else y


def multi_head_attention(
    queries: Array,
    keys: Array,
    values: Array,
    *bias: Array,
    causal: bool = False,
    scale: float = 1.0,
    dropout: float = 0.0,
    key: Any = None,
) -> Array:
    """Queries (n, s, heads, d), keys and values (n, t, groups, ...)."""
    together = queries.shape[2] // keys.shape[2]
    keys, values = jnp.repeat(keys, together, 2), jnp.repeat(values, together, 2)
    scores = sum(bias, scale * jnp.einsum("nshd,nthd->nhst", queries, keys))
    if causal:
        s, t = scores.shape[-2:]
        scores = jnp.where(jnp.triu(jnp.ones((s, t), bool), 1), -jnp.inf, scores)
    if bias:  # a query that may attend to nothing does so, and has no gradient
        nothing = (scores == -jnp.inf).all(-1, keepdims=True)
        weights = jnp.where(nothing, 0.0, jax.nn.softmax(jnp.where(nothing, 0.0, scores), -1))
    else:
        weights = jax.nn.softmax(scores, -1)
    if dropout > 0:
        kept = jax.random.bernoulli(key, 1 - dropout, weights.shape)
        weights = weights * kept / (1 - dropout)
    return jnp.einsum("nhst,nthe->nshe", weights, values)


def luong_attention(h: Array, s: Array, score_kernel: Array, kernel: Array) -> Array:
    weights = jax.nn.softmax(h @ score_kernel @ s.swapaxes(1, 2), -1)
    return jnp.tanh(jnp.concatenate([weights @ s, h], -1) @ kernel.T)


def rotary(x: Array, cosines: Array, sines: Array, interleaved: bool) -> Array:
    if cosines.ndim == 3:
        cosines, sines = cosines[:, :, None], sines[:, :, None]
    if interleaved:
        turned = jnp.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    else:
        a, b = jnp.split(x, 2, -1)
        turned = jnp.concatenate([-b, a], -1)
    return x * cosines + turned * sines


def lstm(
    x: Array, *others: Array, two_biases: bool = False, reverse: bool = False
) -> tuple[Array, Array, Array]:
    """Steps y, and the state after the last one, h and c."""
    *state, kernel, recurrent, bias = others[: len(others) - two_biases]
    if two_biases:
        bias = bias + others[-1]
    zero = jnp.zeros((x.shape[0], kernel.shape[0]), x.dtype)
    h, c = state or (zero, zero)
    given = jnp.einsum("ntd,ugd->ntgu", x, kernel) + bias.T
    steps = []
    for step in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        gates = given[:, step] + jnp.einsum("nh,ugh->ngu", h, recurrent)
        i, f, g, o = (gates[:, gate] for gate in range(4))
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        steps.append(h)
    return jnp.stack(steps[::-1] if reverse else steps, 1), h, c


def gru(x: Array, *others: Array, reverse: bool = False) -> tuple[Array, Array]:
    """Steps y, and the state after the last one."""
    *state, kernel, recurrent, bias, recurrent_bias = others
    h = state[0] if state else jnp.zeros((x.shape[0], kernel.shape[0]), x.dtype)
    given = jnp.einsum("ntd,ugd->ntgu", x, kernel) + bias.T
    steps = []
    for step in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        before = jnp.einsum("nh,ugh->ngu", h, recurrent) + recurrent_bias.T
        r = jax.nn.sigmoid(given[:, step, 0] + before[:, 0])
        z = jax.nn.sigmoid(given[:, step, 1] + before[:, 1])
        h = (1 - z) * jnp.tanh(given[:, step, 2] + r * before[:, 2]) + z * h
        steps.append(h)
    return jnp.stack(steps[::-1] if reverse else steps, 1), h


def top_k(x: Array, k: int) -> Array:
    """The k largest of each row; of equal ones, the first."""
    ranks = jnp.argsort(jnp.argsort(-x, -1, stable=True), -1, stable=True)
    return x * (ranks < k)


def capacity(x: Array, most: int) -> Array:
    """Of each column, the first values that are not 0."""
    rows = x.reshape(-1, x.shape[-1])
    return (rows * (jnp.cumsum(rows != 0, 0) <= most)).reshape(x.shape)


def experts(
    x: Array, gates: Array, up: Array, down: Array, *gate: Array, activation: str = "relu"
) -> Array:
    """The sum of the experts' results, times the gates."""
    inner = activated(jnp.einsum("...d,eud->...eu", x, up), activation)
    for its in gate:
        inner = inner * jnp.einsum("...d,eud->...eu", x, its)
    # A gate of 0 has no gradient.
    weights = jnp.where(gates == 0, lax.stop_gradient(gates), gates)
    return jnp.einsum("...eu,edu,...e->...d", inner, down, weights)


def cosine(x: Array, kernel: Array) -> Array:
    return unit(x) @ unit(kernel).T


def unit(x: Array) -> Array:
    """Rows of length 1."""
    return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def angular_margin(
    cosines: Array, labels: Array, scale: float, margin: float, of_angle: bool
) -> Array:
    own = labels[:, None] == jnp.arange(cosines.shape[1])
    if of_angle:
        sine = jnp.sqrt(jnp.maximum(1 - cosines * cosines, 1e-12))
        moved = cosines * math.cos(margin) - sine * math.sin(margin)
        beyond = cosines - margin * math.sin(margin)
        moved = jnp.where(cosines > -math.cos(margin), moved, beyond)
    else:
        moved = cosines - margin
    return scale * jnp.where(own, moved, cosines)


def resize2d(
    x: Array, kind: str, factor_h: int, factor_w: int, align_corners: bool = False
) -> Array:
    if kind == "nearest":
        return jnp.repeat(jnp.repeat(x, factor_h, 1), factor_w, 2)
    for axis, factor in ((1, factor_h), (2, factor_w)):
        extent = x.shape[axis]
        numbers = jnp.arange(extent * factor)
        if align_corners:
            at = numbers * (max(extent - 1, 0) / max(extent * factor - 1, 1))
        else:
            at = jnp.maximum((numbers + 0.5) / factor - 0.5, 0)
        low = jnp.minimum(at.astype(int), extent - 1)
        share = (at - low).reshape([-1 if d == axis else 1 for d in range(4)])
        high = jnp.minimum(low + 1, extent - 1)
        x = jnp.take(x, low, axis) * (1 - share) + jnp.take(x, high, axis) * share
    return x
