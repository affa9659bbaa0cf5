"""What operators compute, as functions of PyTorch tensors; a plan has those that it uses.

Each has the name of its operator's type and takes the inputs, then the weights, then attributes. It
computes a tile of the outputs from a tile's operands as it computes all from all: what depends on
the tile follows from shapes, or is said by `shape` (of the output), `low` (where in the dimension
that it looks up the tile begins) or `count` (how many elements the whole reduces).
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

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


def own_logit(logits: Tensor, labels: Tensor, low: int) -> Tensor:
    """The logit of each label's own class, of those from `low` on; else 0."""
    rows = labels.long() - low
    there = (labels >= 0) & (rows >= 0) & (rows < logits.shape[-1])
    own = logits.gather(-1, rows.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
    return (own * there).detach()


def logit_statistics(logits: Tensor, labels: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """The cross-entropy of each label, 0 where it does not count, and no rank."""
    classes = logits.shape[-1]
    losses = F.cross_entropy(
        logits.reshape(-1, classes), labels.long().clamp_min(0).reshape(-1), reduction="none"
    )
    losses = losses.reshape(labels.shape) * (labels >= 0)
    return losses, torch.zeros_like(losses)


def cross_entropy(log_sum: Tensor, *others: Tensor, smoothing: float = 0.0) -> Tensor:
    """One value a label; of smoothed ones, the statistics' mean is part of it."""
    return log_sum if smoothing == 0 else log_sum - smoothing * others[1]


def smoothed_logit_statistics(
    logits: Tensor, labels: Tensor, own: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `logit_statistics`, and the mean of the logits relative to the own one."""
    losses, rank = logit_statistics(logits, labels, own)
    rows = labels.long().clamp_min(0).unsqueeze(-1)
    mean = (logits - logits.gather(-1, rows)).mean(-1) * (labels >= 0)
    return losses, rank, mean


def softmax_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    even = smoothing / logits.shape[-1]
    return -((1 - smoothing) * labels + even).mul(F.log_softmax(logits, -1)).sum(-1)


def mean_squared_error(x: Tensor, labels: Tensor) -> Tensor:
    return (x - labels).square().reshape(x.shape[0], -1).mean(1)


def mean_absolute_error(x: Tensor, labels: Tensor) -> Tensor:
    return (x - labels).abs().reshape(x.shape[0], -1).mean(1)


def huber(x: Tensor, labels: Tensor, delta: float = 1.0) -> Tensor:
    losses = F.huber_loss(x, labels, reduction="none", delta=delta)
    return losses.reshape(x.shape[0], -1).mean(1)


def binary_cross_entropy(x: Tensor, labels: Tensor, of: str = "logits") -> Tensor:
    function = F.binary_cross_entropy_with_logits if of == "logits" else F.binary_cross_entropy
    return function(x, labels, reduction="none").reshape(x.shape[0], -1).mean(1)


def mean_loss(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1).mean(1)
