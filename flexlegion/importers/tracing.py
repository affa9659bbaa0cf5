"""What happens while torch.export traces a module: gradients that the trace would not show.

The exported graph has the operations of the forward pass; gradients follow from these. A backward
pass that a module brings itself leaves no trace there, so it is refused. So that the trace shows
``torch.inference_mode``, it is traced as ``torch.no_grad``, which has the same gradients.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._functorch.utils
from torch.nn.modules import module as modules
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.utils import checkpoint

from flexlegion.base.errors import UserError
from flexlegion.importers.own_gradients import forward_alone, is_forwards

_INSTEAD = (
    "which is not followed here: training would use the gradient of the forward pass; leave it out"
)


def refuse_what_leaves_no_trace(module: torch.nn.Module) -> None:
    """Refuse hooks of the backward pass, and averages of all batches.

    Raises
    ------
    UserError
        If a part or a parameter has some.
    """
    for path, part in module.named_modules():
        if isinstance(part, _BatchNorm) and part.momentum is None and part.track_running_stats:
            raise UserError(
                f"'{path}' ({type(part).__name__}) has momentum=None: its running averages are "
                "those of all batches, which are not kept here; give it a momentum"
            )
        if isinstance(part, _SpectralNorm) and part.training and part.n_power_iterations:
            raise UserError(
                f"'{path}' (spectral_norm) moves its vectors in each training step, which is not "
                "kept here; set this part's .training to False, so that it divides by the norm "
                "that the vectors it has give"
            )
        if part._backward_hooks or part._backward_pre_hooks:
            raise UserError(f"'{path}' ({type(part).__name__}) has a backward hook, {_INSTEAD}")
    for name, parameter in module.named_parameters():
        after = getattr(parameter, "_post_accumulate_grad_hooks", None)
        if parameter._backward_hooks or after:
            raise UserError(f"parameter '{name}' has a hook on its gradient, {_INSTEAD}")


@contextlib.contextmanager
def gradients_as_traced() -> Iterator[list[str]]:
    """While this lasts, what changes gradients without a trace is refused.

    Autograd functions of a user's own are followed where their backward pass gives the gradient of
    their forward pass; they are listed.
    """
    followed: list[str] = []
    function, tensor, inference = torch.autograd.Function, torch.Tensor, torch.inference_mode
    apply, register = function.__dict__["apply"], tensor.register_hook
    enter, leave = inference.__enter__, inference.__exit__

    def follow(cls: Any, args: tuple[Any, ...]) -> None:
        if not is_forwards(cls, apply.__get__(None, cls), args):
            raise UserError(
                f"autograd function {cls.__name__} has a backward pass of its own, {_INSTEAD}"
            )
        if cls.__name__ not in followed:
            followed.append(cls.__name__)

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.startswith("torch."):
            return apply.__func__(cls, *args, **kwargs)
        if kwargs:
            raise UserError(f"autograd function {cls.__name__} takes keywords, {_INSTEAD}")
        follow(cls, args)
        return forward_alone(cls, args)

    def unwrapped(args: tuple[Any, ...]) -> tuple[Any, ...]:
        # `apply` itself calls this. Code that took the method before, as `gelu = GELU.apply`, calls
        # it behind our back; its forward pass is traced all the same.
        frame = inspect.currentframe()
        caller = None if frame is None else frame.f_back
        if caller is not None and caller.f_code is apply.__func__.__code__ and in_here():
            cls = caller.f_locals["cls"]
            if not cls.__module__.startswith("torch."):
                follow(cls, args)
        return unwrap(args)

    here = threading.get_ident()

    def in_here() -> bool:  # functions are tried in another thread
        return threading.get_ident() == here

    utils = torch._functorch.utils
    unwrap = utils.unwrap_dead_wrappers

    def registered(_: torch.Tensor, hook: Any) -> Any:
        name = getattr(hook, "__name__", type(hook).__name__)
        raise UserError(f"the network hooks '{name}' on a gradient, {_INSTEAD}")

    def entered(self: Any) -> None:
        self._without = torch.set_grad_enabled(torch.is_grad_enabled() and not self.mode)

    def left(self: Any, *_: Any) -> None:
        torch.set_grad_enabled(self._without.prev)

    changes = [
        (function, "apply", classmethod(applied), apply),
        (utils, "unwrap_dead_wrappers", unwrapped, unwrap),
        (tensor, "register_hook", registered, register),
        (inference, "__enter__", entered, enter),
        (inference, "__exit__", left, leave),
    ]
    for owner, name, new, _ in changes:
        setattr(owner, name, new)
    try:
        yield followed
    finally:
        for owner, name, _, old in changes:
            setattr(owner, name, old)


@contextlib.contextmanager
def without_checkpoints() -> Iterator[list[Any]]:
    """While this lasts, ``torch.utils.checkpoint`` calls functions as they are.

    What a checkpoint keeps and computes again is no part of what a network computes, and of those
    that are "reentrant" the trace would show a forward pass without gradients. The functions that
    were called are listed.
    """
    called: list[Any] = []

    class Called:
        @staticmethod
        def apply(function: Any, _: bool, *args: Any) -> Any:
            called.append(function)
            return function(*args)

    def generator(function: Any, *_: Any, **__: Any) -> Iterator[None]:
        called.append(function)
        yield  # the function is called here

    names: dict[str, Any] = {
        "CheckpointFunction": Called,
        "_checkpoint_without_reentrant_generator": generator,
    }
    before = {name: getattr(checkpoint, name) for name in names}
    for name, new in names.items():
        setattr(checkpoint, name, new)
    try:
        yield called
    finally:
        for name, old in before.items():
            setattr(checkpoint, name, old)


class _Drawn:
    """A number between 0 and 1 that is drawn, to decide whether a layer is skipped."""

    def __lt__(self, rate: Any) -> bool:
        if isinstance(rate, int | float) and rate <= 0:
            return False
        raise RuntimeError(
            f"it skips layers at random, at a rate of {rate} (layerdrop); only a rate of 0 can be "
            "imported"
        )


@contextlib.contextmanager
def numbers_drawn() -> Iterator[None]:
    """While this lasts, ``torch.rand([])`` can be below a rate of 0, which it never is.

    Models with a `layerdrop` draw such a number for each layer, whatever the rate is.
    """
    draw = torch.rand

    def drawn(*args: Any, **kwargs: Any) -> Any:
        return _Drawn() if args in (([],), ((),)) and not kwargs else draw(*args, **kwargs)

    torch.rand = drawn
    try:
        yield
    finally:
        torch.rand = draw


def failing_part(module: torch.nn.Module, run: Callable[[], object]) -> str:
    """Path of the innermost part in which a run of the module fails; "" where that is the whole."""
    paths = {part: path for path, part in module.named_modules()}
    entered: list[str] = []
    at: list[str] = []

    def enters(part: torch.nn.Module, _: Any) -> None:
        entered.append(paths.get(part, ""))
        at[:] = entered  # longer again: what failed before, if anything, was caught

    def leaves(*_: Any) -> None:
        if entered:
            entered.pop()
        at[:] = entered

    hooks = [
        modules.register_module_forward_pre_hook(enters),
        modules.register_module_forward_hook(leaves),
    ]
    try:
        run()
    except Exception:
        return next((path for path in reversed(at) if path), "")
    finally:
        for hook in hooks:
            hook.remove()
    return ""
