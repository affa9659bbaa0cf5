"""Autograd functions of a user's own: followed where their backward pass is the forward pass's.

Such functions are written to save memory or time. Their backward pass, which leaves no trace in an
exported program, is compared with the gradient of what their forward pass computes, on random
numbers in double precision. Where both are the same, the forward pass is followed.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch
from torch.utils import _pytree as pytree

_TOLERANCE = 1e-6  # of the largest element: constants are written with so many digits
_SCALES = (1.0, 0.01, 30.0)  # of the numbers that are tried, and of the gradients


class _Context:
    """What a forward pass gets where nobody runs the backward pass: it keeps nothing."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (True,) * count

    def save_for_backward(self, *_: torch.Tensor) -> None:
        """Nothing."""

    def save_for_forward(self, *_: torch.Tensor) -> None:
        """Nothing."""

    def set_materialize_grads(self, _: bool) -> None:
        """Nothing."""


def forward_alone(function: Any, args: tuple[Any, ...]) -> Any:
    """What a function's forward pass computes, as operations that autograd follows."""
    if function.setup_context is not torch.autograd.Function.setup_context:
        return function.forward(*args)
    return function.forward(_Context(len(args)), *args)


def is_forwards(function: Any, apply: Any, args: tuple[Any, ...]) -> bool:
    """Whether a function's backward pass gives the gradient of its forward pass.

    Parameters
    ----------
    function
        A class, of `torch.autograd.Function`.
    apply
        Its method, of PyTorch.
    args
        Of the call; of tensors, shapes and types count alone.
    """
    found: list[bool] = []

    def compare() -> None:
        # Whatever the user's code raises, on tensors of another precision, say, is no agreement.
        with contextlib.suppress(Exception):
            found.append(all(_agree(function, apply, args, scale) for scale in _SCALES))

    # A thread has autograd's usual state; here, the module is being traced.
    thread = threading.Thread(target=compare)
    thread.start()
    thread.join()
    return found == [True]


def _agree(function: Any, apply: Any, args: tuple[Any, ...], scale: float) -> bool:
    generator = torch.Generator().manual_seed(0)
    found = [
        _run(run, args, scale, generator.manual_seed(0))
        for run in (lambda *own: apply(*own), lambda *own: forward_alone(function, own))
    ]
    return len(found[0]) == len(found[1]) > 1 and all(map(_alike, *found))


def _alike(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:  # no gradient at all is one of zeros
        return not any(x is not None and bool(x.any()) for x in (a, b))
    largest = max(float(b.abs().max()), 1e-30) if b.numel() else 1.0
    return a.shape == b.shape and bool(((a - b).abs() <= _TOLERANCE * largest).all())


def _number(extent: Any) -> int:
    """An extent; of the samples, how many the example has, which leaves no trace."""
    return int(extent.node.hint) if isinstance(extent, torch.SymInt) else int(extent)


def _run(
    run: Any, args: tuple[Any, ...], scale: float, generator: torch.Generator
) -> list[torch.Tensor | None]:
    """Results, and gradients of all arguments that may have one."""

    def drawn(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        shape = [_number(extent) for extent in value.shape]
        if not value.dtype.is_floating_point:
            return torch.randint(0, 2, shape, generator=generator).to(value.dtype)
        numbers = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        return numbers.requires_grad_()

    own = [pytree.tree_map(drawn, arg) for arg in args]
    with torch.enable_grad():
        # A function may return an argument itself, whose gradient would then be asked for.
        results = [r * 1 for r in pytree.tree_leaves(run(*own)) if isinstance(r, torch.Tensor)]
    tracked = [r for r in results if r.requires_grad]
    wanted = [t for t in pytree.tree_leaves(own) if isinstance(t, torch.Tensor) and t.requires_grad]
    factors = [
        scale * torch.randn(r.shape, generator=generator, dtype=torch.float64) for r in tracked
    ]
    gradients: list[torch.Tensor | None] = []
    if tracked and wanted:
        gradients = list(torch.autograd.grad(tracked, wanted, factors, allow_unused=True))
    return [*(r.detach().double() for r in results), *gradients]
