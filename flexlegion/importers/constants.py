"""Constants: what depends neither on inputs nor on weights is computed by torch, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flexlegion.importers.program import SAMPLES, Array, Shape

# As many samples as constants are computed for; any number above 1 tells whether samples differ.
PROBE = 3

_OF_NUMPY = (torch.float64, torch.float32, torch.float16)

# Operations whose results are drawn anew each time.
_RANDOM = ("bernoulli", "rand", "normal", "multinomial", "dropout", "poisson", "exponential")


def is_random(op: str) -> bool:
    """Whether an operation draws numbers."""
    return op.startswith(_RANDOM) or op in ("rrelu", "feature_dropout", "alpha_dropout")


def evaluate(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation on constants."""
    with torch.no_grad():
        return target(*args, **kwargs)


def numbers(tensor: torch.Tensor) -> Array:
    """A tensor's numbers on the host; real ones that NumPy has no type for become float32."""
    tensor = tensor.detach().cpu()
    narrow = tensor.is_floating_point() and tensor.dtype not in _OF_NUMPY
    return tensor.float().numpy() if narrow else tensor.numpy()


def shared_by_samples(tensor: torch.Tensor, shape: Shape) -> Array | None:
    """A constant with an extent of 1 for samples, or None if it differs from sample to sample."""
    for d, extent in enumerate(shape):
        if extent == SAMPLES:
            first = tensor.narrow(d, 0, 1)
            if not torch.equal(first.expand_as(tensor), tensor):
                return None
            tensor = first
        elif extent % SAMPLES == 0:
            return None  # samples merged with positions
    return numbers(tensor.contiguous())
