"""What operators compute, as functions of JAX arrays; a plan has those that it uses.

As `torch_functions`, but each is given all of its operands, and the compiler divides it. What keeps
a state returns its new values after its outputs.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

# begin


def of_weights(function: Callable[..., Any], own: int) -> Callable[..., Any]:
    """A function whose weights, behind so many operands, are tensors (1, ...) that others make."""

    def of(*operands: Array, **attributes: Any) -> Any:
        return function(*operands[:own], *(weight[0] for weight in operands[own:]), **attributes)

    return of


def activated(x: Array, activation: str) -> Array:
    """An activation of x, by its name."""
    if activation == "none":
        return x
    known: dict[str, Callable[[Array], Array]] = {
        "relu": relu,
        "sigmoid": jax.nn.sigmoid,
        "tanh": jnp.tanh,
        "gelu": gelu,
        "silu": jax.nn.silu,
        "relu6": lambda x: hardtanh(x, 0.0, 6.0),
        "hardswish": lambda x: x * hardtanh(x + 3, 0.0, 6.0) / 6,
    }
    return known[activation](x)


def relu(x: Array) -> Array:
    return jax.nn.relu(x)


def sigmoid(x: Array) -> Array:
    return jax.nn.sigmoid(x)


def tanh(x: Array) -> Array:
    return jnp.tanh(x)


def gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=False)


def softmax(x: Array, log: bool = False) -> Array:
    return (jax.nn.log_softmax if log else jax.nn.softmax)(x, -1)


def hardtanh(x: Array, low: Any = -1.0, high: Any = 1.0) -> Array:
    """x between two bounds, at which its slope is 0."""
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x))


def clamp(x: Array, low: Any, high: Any) -> Array:
    """x between two bounds, at which its slope is 1."""
    return jnp.where(x < low, low, jnp.where(x > high, high, x))


def dropout(x: Array, rate: float, key: Array) -> Array:
    return x * jax.random.bernoulli(key, 1 - rate, x.shape) / (1 - rate)


def drop_path(x: Array, rate: float, key: Array) -> Array:
    """Dropout of whole samples."""
    one = (x.shape[0], *[1] * (x.ndim - 1))
    return x * jax.random.bernoulli(key, 1 - rate, one) / (1 - rate)


def add(*terms: Array) -> Array:
    return sum(terms[1:], terms[0])


def multiply(a: Array, b: Array) -> Array:
    return a * b


def concat(*parts: Array, axis: int) -> Array:
    return jnp.concatenate(parts, axis)


def flatten(x: Array) -> Array:
    return x.reshape(x.shape[0], -1)


def reshape(x: Array, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


def rearrange(
    x: Array, extents: tuple[int, ...], order: tuple[int, ...], shape: tuple[int, ...]
) -> Array:
    axes = (0, *(i + 1 for i in order))
    return x.reshape(x.shape[0], *extents).transpose(axes).reshape(shape)


def transpose(x: Array, permutation: tuple[int, ...]) -> Array:
    return x.transpose(permutation)


def slice(x: Array, axis: int, start: int, size: int, step: int = 1) -> Array:
    return lax.slice_in_dim(x, start, start + (size - 1) * step + 1, step, axis)


def pad(x: Array, before: tuple[int, ...], after: tuple[int, ...]) -> Array:
    return jnp.pad(x, list(zip(before, after, strict=True)))


def roll(x: Array, axis: int, shift: int) -> Array:
    return jnp.roll(x, shift, axis)


def take(x: Array, numbers: Array, order: Array, starts: Array, axis: int) -> Array:
    return jnp.take(x, numbers[0], axis)


def reduce(x: Array, kind: str, axes: tuple[int, ...], keepdims: bool = False) -> Array:
    if kind != "max":  # amax's gradient is shared by all elements that have the maximum
        functions: dict[str, Any] = {"mean": jnp.mean, "sum": jnp.sum, "amax": jnp.max}
        return functions[kind](x, axis=axes, keepdims=keepdims)
    # A maximum's gradient goes to the first element that has it.
    kept = [d for d in range(x.ndim) if d not in axes]
    flat = x.transpose(*kept, *axes).reshape(*(x.shape[d] for d in kept), -1)
    most = jnp.take_along_axis(flat, flat.argmax(-1)[..., None], -1)[..., 0]
    return jnp.expand_dims(most, axes) if keepdims else most


def aligned(x: Array, rank: int) -> Array:
    """With the samples first, and other dimensions from the last one on."""
    return x.reshape(x.shape[0], *[1] * (rank - x.ndim), *x.shape[1:])


def expression(*inputs: Array, formula: str, shape: tuple[int, ...]) -> Array:
    """A formula over x0, x1, ..., broadcast to a shape; ``real`` makes comparisons numbers."""
    values: dict[str, Any] = {f"x{i}": aligned(x, len(shape)) for i, x in enumerate(inputs)}
    kinds = (x.dtype for x in inputs if jnp.issubdtype(x.dtype, jnp.floating))
    kind = next(kinds, jnp.float32)
    values["real"] = lambda condition: condition.astype(kind)
    # Nothing of Python, but libraries import modules of their own when they are first called.
    builtins = {"__builtins__": {"__import__": __import__}}
    return jnp.broadcast_to(eval(formula, builtins, FORMULAS | values), shape)


FORMULAS: dict[str, Any] = {
    "where": lambda c, a, b: jnp.where(c != 0, a, b),
    "minimum": jnp.minimum,
    "maximum": jnp.maximum,
    "clamp": clamp,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "silu": jax.nn.silu,
    "mish": jax.nn.mish,
    "hardswish": lambda x: x * hardtanh(x + 3, 0.0, 6.0) / 6,
    "hardsigmoid": lambda x: hardtanh(x + 3, 0.0, 6.0) / 6,
    "hardtanh": hardtanh,
    "relu6": lambda x: hardtanh(x, 0.0, 6.0),
    "elu": jax.nn.elu,
    "selu": jax.nn.selu,
    "leaky_relu": lambda x: jnp.where(x > 0, x, 0.01 * x),
    "softplus": jax.nn.softplus,
    "log_sigmoid": jax.nn.log_sigmoid,
    "softsign": jax.nn.soft_sign,
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt,
    "square": jnp.square,
    "reciprocal": jnp.reciprocal,
    "neg": jnp.negative,
    "abs": jnp.abs,
    "sign": jnp.sign,
    "floor": jnp.floor,
    "detach": jax.lax.stop_gradient,
    "ceil": jnp.ceil,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "atan": jnp.arctan,
    "asin": jnp.arcsin,
    "acos": jnp.arccos,
    "erf": jax.scipy.special.erf,
}


def counting(labels: Any, ignored: int = -1, weights: Array | None = None) -> Array:
    """Whether labels count, or the weights of their classes, of which `weights` has a row.

    Those below 0 and `ignored` do not count.
    """
    labels = jnp.asarray(labels)
    counts = (labels >= 0) & (labels != ignored)
    return counts if weights is None else counts * weights[0][jnp.where(counts, labels, 0)]


def own_of(logits: Array, labels: Array, counts: Array) -> Array:
    """The logit of each label's own class; that of the first one where it does not count."""
    rows = jnp.where(counts, labels, 0)[..., None]
    return jnp.take_along_axis(logits, rows, -1)[..., 0]


def own_logit(logits: Array, labels: Array, ignored: int = -1) -> Array:
    """The logit of each label's own class; 0 where it does not count."""
    counts = counting(labels, ignored)
    return lax.stop_gradient(own_of(logits, labels, counts) * counts)


def logit_statistics(
    logits: Array, labels: Array, own: Array, ignored: int = -1
) -> tuple[Array, Array]:
    """The cross-entropy of each label, 0 where it does not count, and no rank."""
    counts = counting(labels, ignored)
    losses = (jax.nn.logsumexp(logits, -1) - own_of(logits, labels, counts)) * counts
    return losses, jnp.zeros_like(losses)


def smoothed_logit_statistics(
    logits: Array, labels: Array, own: Array, *weights: Array, ignored: int = -1
) -> tuple[Array, Array, Array]:
    """As `logit_statistics`, and the mean of the logits relative to the own one.

    Classes may have `weights`, which these are multiplied with.
    """
    losses, rank = logit_statistics(logits, labels, own, ignored)
    counts = counting(labels, ignored)
    relative = math.prod(weights, start=logits - own_of(logits, labels, counts)[..., None])
    return losses, rank, relative.mean(-1) * counts


def cross_entropy(
    log_sum: Array,
    *others: Array,
    smoothing: float = 0.0,
    ignored: int = -1,
    label_weights: bool = False,
) -> Array:
    """One value a label, of its statistics, of the weights of classes and labels, and the label.

    Of smoothed labels, the statistics' mean is part of it.
    """
    _, *means, labels = others
    of_labels = [means.pop()] if label_weights else []
    mean = smoothing * means.pop(0) if smoothing > 0 else 0
    for weights in means:  # of classes, if they have some
        own = counting(labels, ignored, weights)
        log_sum = ((1 - smoothing) * own + smoothing * weights.mean()) * log_sum
    return math.prod(of_labels, start=log_sum - mean)


def softmax_cross_entropy(logits: Array, *others: Array, smoothing: float = 0.0) -> Array:
    *weights, labels = others
    even = smoothing / logits.shape[-1]
    losses = -(((1 - smoothing) * labels + even) * jax.nn.log_softmax(logits, -1)).sum(-1)
    return math.prod(weights, start=losses)


def each_sample(x: Array, *weights: Array) -> Array:
    """The mean over each sample's values, times its weight, if it has one."""
    return math.prod(weights, start=x.reshape(x.shape[0], -1).mean(1))


def mean_squared_error(x: Array, *others: Array) -> Array:
    *weights, labels = others
    return each_sample(jnp.square(x - labels), *weights)


def mean_absolute_error(x: Array, *others: Array) -> Array:
    *weights, labels = others
    return each_sample(jnp.abs(x - labels), *weights)


def huber(x: Array, *others: Array, delta: float = 1.0) -> Array:
    *weights, labels = others
    error = jnp.abs(x - labels)
    inside = 0.5 * jnp.square(error)
    losses = jnp.where(error < delta, inside, delta * (error - 0.5 * delta))
    return each_sample(losses, *weights)


def binary_cross_entropy(
    x: Array, *others: Array, of: str = "logits", positive_weight: float = 1.0
) -> Array:
    *weights, labels = others
    if of == "logits":
        yes, no = jax.nn.log_sigmoid(x), jax.nn.log_sigmoid(-x)
    else:
        yes, no = (jnp.maximum(jnp.log(p), -100.0) for p in (x, 1 - x))  # as PyTorch bounds them
    return each_sample(-(positive_weight * labels * yes + (1 - labels) * no), *weights)


def mean_loss(x: Array) -> Array:
    return each_sample(x)
