"""What operators compute, as functions of PyTorch tensors; a plan has those that it uses.

Each has the name of its operator's type and takes the inputs, then the weights, then attributes. It
computes a tile of the outputs from a tile's operands as it computes all from all: what depends on
the tile follows from shapes, or is said by `shape` (of the output), `low` (where in the dimension
that it looks up the tile begins) or `count` (how many elements the whole reduces).
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# begin


def of_weights(function: Callable[..., Any], own: int) -> Callable[..., Any]:
    """A function whose weights, behind so many operands, are tensors (1, ...) that others make."""

    def of(*operands: Tensor, **attributes: Any) -> Any:
        return function(*operands[:own], *(weight[0] for weight in operands[own:]), **attributes)

    return of


def activated(x: Tensor, activation: str) -> Tensor:
    """An activation of x, by its name."""
    if activation == "none":
        return x
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": F.relu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "gelu": F.gelu,
        "silu": F.silu,
        "relu6": F.relu6,
        "hardswish": F.hardswish,
    }
    return known[activation](x)


def relu(x: Tensor) -> Tensor:
    return F.relu(x)


def sigmoid(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


def tanh(x: Tensor) -> Tensor:
    return torch.tanh(x)


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def softmax(x: Tensor, low: int, shape: tuple[int, ...], log: bool = False) -> Tensor:
    return (F.log_softmax if log else F.softmax)(x, -1).narrow(-1, low, shape[-1])


def dropout(x: Tensor, rate: float, key: tuple[int, ...]) -> Tensor:
    """Zeroes elements; devices of the same `key` zero the same ones."""
    mask = torch.rand(x.shape, generator=generator(key, x.device), device=x.device) >= rate
    return x * mask / (1 - rate)


def drop_path(x: Tensor, rate: float, key: tuple[int, ...]) -> Tensor:
    """Zeroes whole samples; devices of the same `key` zero the same ones."""
    one = (x.shape[0], *[1] * (x.dim() - 1))
    mask = torch.rand(one, generator=generator(key, x.device), device=x.device) >= rate
    return x * mask / (1 - rate)


def generator(key: tuple[int, ...], device: torch.device) -> torch.Generator:
    """A source of random numbers for a key."""
    seed = 0
    for part in key:
        seed = (seed * 1_000_003 + part + 1) % 2**63
    return torch.Generator(device).manual_seed(seed)


def add(*terms: Tensor) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def multiply(a: Tensor, b: Tensor) -> Tensor:
    return a * b


def concat(*parts: Tensor, axis: int) -> Tensor:
    return torch.cat(parts, axis)


def flatten(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1)


def reshape(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x.reshape(shape)


def rearrange(
    x: Tensor, extents: tuple[int, ...], order: tuple[int, ...], shape: tuple[int, ...]
) -> Tensor:
    axes = (0, *(i + 1 for i in order))
    return x.reshape(x.shape[0], *extents).permute(axes).reshape(shape)


def transpose(x: Tensor, permutation: tuple[int, ...]) -> Tensor:
    return x.permute(permutation)


def slice(x: Tensor, axis: int, start: int, size: int, step: int = 1) -> Tensor:
    numbers = torch.arange(start, start + size * step, step, device=x.device)
    return x.index_select(axis, numbers[:size])


def pad(x: Tensor, before: tuple[int, ...], after: tuple[int, ...]) -> Tensor:
    widths = [width for pair in zip(before[::-1], after[::-1], strict=True) for width in pair]
    return F.pad(x, widths)


def roll(x: Tensor, axis: int, shift: int, low: int, shape: tuple[int, ...]) -> Tensor:
    return torch.roll(x, shift, axis).narrow(axis, low, shape[axis])


def take(
    x: Tensor,
    numbers: Tensor,
    order: Tensor,
    starts: Tensor,
    axis: int,
    low: int,
    shape: tuple[int, ...],
) -> Tensor:
    return x.index_select(axis, numbers[0, low : low + shape[axis]].long())


def reduce(
    x: Tensor, kind: str, axes: tuple[int, ...], count: int, keepdims: bool = False
) -> Tensor:
    if kind == "max":  # whose gradient goes to the first element that has it
        kept = [d for d in range(x.dim()) if d not in axes]
        most = x.permute(*kept, *axes).flatten(len(kept)).max(-1).values
        return (
            most.reshape([1 if d in axes else x.shape[d] for d in range(x.dim())])
            if keepdims
            else most
        )
    if kind == "amax":  # whose gradient all elements share that have it
        return x.amax(axes, keepdims)
    total = x.sum(axes, keepdim=keepdims)
    return total / count if kind == "mean" else total


def aligned(x: Tensor, rank: int) -> Tensor:
    """With the samples first, and other dimensions from the last one on."""
    return x.reshape(x.shape[0], *[1] * (rank - x.dim()), *x.shape[1:])


def expression(*inputs: Tensor, formula: str, shape: tuple[int, ...]) -> Tensor:
    """A formula over x0, x1, ..., broadcast to a shape; ``real`` makes comparisons numbers."""
    values: dict[str, Any] = {f"x{i}": aligned(x, len(shape)) for i, x in enumerate(inputs)}
    kind = next((x.dtype for x in inputs if x.dtype.is_floating_point), torch.float32)
    values["real"] = lambda condition: condition.to(kind)
    # Nothing of Python, but libraries import modules of their own when they are first called.
    builtins = {"__builtins__": {"__import__": __import__}}
    result: Tensor = eval(formula, builtins, FORMULAS | values)
    return result.expand(shape)


def _each(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """A function of tensors that takes numbers, too."""

    def of(*values: Tensor | float) -> Tensor:
        like = next(v for v in values if isinstance(v, Tensor))
        real = like.dtype if like.dtype.is_floating_point else torch.float32
        result: Tensor = function(
            *(
                v
                if isinstance(v, Tensor)
                else like.new_full((), v, dtype=torch.bool if isinstance(v, bool) else real)
                for v in values
            )
        )
        return result

    return of


FORMULAS: dict[str, Any] = {
    "where": lambda c, a, b: _each(torch.where)(c != 0, a, b),
    "minimum": _each(torch.minimum),
    "maximum": _each(torch.maximum),
    "clamp": _each(torch.clamp),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "relu6": F.relu6,
    "elu": F.elu,
    "selu": F.selu,
    "leaky_relu": F.leaky_relu,
    "softplus": F.softplus,
    "log_sigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "square": torch.square,
    "reciprocal": torch.reciprocal,
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "detach": torch.detach,
    "ceil": torch.ceil,
    "sin": torch.sin,
    "cos": torch.cos,
    "atan": torch.atan,
    "asin": torch.asin,
    "acos": torch.acos,
    "erf": torch.erf,
}


def counting(labels: Tensor, ignored: int = -1, weights: Tensor | None = None) -> Tensor:
    """Whether labels count, or the weights of their classes, of which `weights` has a row.

    Those below 0 and `ignored` do not count.
    """
    counts = (labels >= 0) & (labels != ignored)
    return counts if weights is None else counts * weights[0][torch.where(counts, labels, 0)]


def own_logit(logits: Tensor, labels: Tensor, low: int) -> Tensor:
    """The logit of each label's own class, of those from `low` on; else 0."""
    rows = labels.long() - low
    there = (labels >= 0) & (rows >= 0) & (rows < logits.shape[-1])
    own = logits.gather(-1, rows.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
    return (own * there).detach()


def logit_statistics(
    logits: Tensor, labels: Tensor, own: Tensor, ignored: int = -1
) -> tuple[Tensor, Tensor]:
    """The cross-entropy of each label, 0 where it does not count, and no rank."""
    classes, counts = logits.shape[-1], counting(labels, ignored)
    rows = torch.where(counts, labels, 0).long()
    losses = F.cross_entropy(logits.reshape(-1, classes), rows.reshape(-1), reduction="none")
    losses = losses.reshape(labels.shape) * counts
    return losses, torch.zeros_like(losses)


def smoothed_logit_statistics(
    logits: Tensor, labels: Tensor, own: Tensor, *weights: Tensor, ignored: int = -1
) -> tuple[Tensor, Tensor, Tensor]:
    """As `logit_statistics`, and the mean of the logits relative to the own one.

    Classes may have `weights`, which these are multiplied with.
    """
    losses, rank = logit_statistics(logits, labels, own, ignored)
    counts = counting(labels, ignored)
    rows = torch.where(counts, labels, 0).long().unsqueeze(-1)
    relative = math.prod(weights, start=logits - logits.gather(-1, rows))
    return losses, rank, relative.mean(-1) * counts


def cross_entropy(
    log_sum: Tensor,
    *others: Tensor,
    smoothing: float = 0.0,
    ignored: int = -1,
    label_weights: bool = False,
) -> Tensor:
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


def softmax_cross_entropy(logits: Tensor, *others: Tensor, smoothing: float = 0.0) -> Tensor:
    *weights, labels = others
    even = smoothing / logits.shape[-1]
    losses = -((1 - smoothing) * labels + even).mul(F.log_softmax(logits, -1)).sum(-1)
    return math.prod(weights, start=losses)


def each_sample(x: Tensor, *weights: Tensor) -> Tensor:
    """The mean over each sample's values, times its weight, if it has one."""
    return math.prod(weights, start=x.reshape(x.shape[0], -1).mean(1))


def mean_squared_error(x: Tensor, *others: Tensor) -> Tensor:
    *weights, labels = others
    return each_sample((x - labels).square(), *weights)


def mean_absolute_error(x: Tensor, *others: Tensor) -> Tensor:
    *weights, labels = others
    return each_sample((x - labels).abs(), *weights)


def huber(x: Tensor, *others: Tensor, delta: float = 1.0) -> Tensor:
    *weights, labels = others
    return each_sample(F.huber_loss(x, labels, reduction="none", delta=delta), *weights)


def binary_cross_entropy(
    x: Tensor, *others: Tensor, of: str = "logits", positive_weight: float = 1.0
) -> Tensor:
    *weights, labels = others
    function = F.binary_cross_entropy_with_logits if of == "logits" else F.binary_cross_entropy
    losses = function(x, labels, reduction="none")
    if positive_weight != 1:  # of what is said of the label, as if there were more of it
        yes = function(x, torch.ones_like(x), reduction="none")
        losses = losses + (positive_weight - 1) * labels * yes
    return each_sample(losses, *weights)


def mean_loss(x: Tensor) -> Tensor:
    return each_sample(x)
