"""Constants: what depends neither on inputs nor on weights is computed by torch, once.

A constant can depend on the number of samples. So it is computed for two numbers of samples, and
has to be the same for each sample, or for the first samples, in both.

What is computed of a buffer without values has none, either; only its shape is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import Later
from flexlegion.importers.program import SAMPLES, Array, Node, Shape, at
from flexlegion.importers.values import has_values, numbers, without_values

# As many samples as constants are computed for. Any number above 1 tells whether samples differ;
# the second one tells whether a constant depends on how many there are.
PROBE, SECOND_PROBE = 3, 5


@dataclass(eq=False)
class Folded:
    """A constant.

    Parameters
    ----------
    tensor
        Computed for `PROBE` samples.
    shape
        For any number of samples.
    second
        Computed for `SECOND_PROBE` samples; None where no number of samples was used.
    unknown
        The buffer without values of which it is computed, so that `tensor` is on the device "meta";
        empty where there is none.
    """

    tensor: torch.Tensor
    shape: Shape
    second: torch.Tensor | None = None
    unknown: str = ""

    @classmethod
    def of(cls, tensor: torch.Tensor, name: str) -> Folded:
        """A copy of a tensor that a module keeps under some name."""
        shape = tuple(tensor.shape)
        if has_values(tensor):
            return cls(tensor.detach().cpu().clone(), shape)
        return cls(torch.empty(shape, dtype=tensor.dtype, device="meta"), shape, None, name)

    def of_one_sample(self) -> tuple[int, Folded] | None:
        """Where a dimension has samples merged with positions, and what stands there for each.

        None if no dimension has, or if it is not the same for all samples.
        """
        merged = [d for d, extent in enumerate(self.shape) if extent and extent % SAMPLES == 0]
        if self.unknown or len(merged) != 1 or self.shape[merged[0]] == SAMPLES:
            return None
        d, count = merged[0], self.shape[merged[0]] // SAMPLES
        tensors = [self.tensor] if self.second is None else [self.tensor, self.second]
        first = self.tensor.narrow(d, 0, count)
        for tensor in tensors:
            each = tensor.reshape(*tensor.shape[:d], -1, count, *tensor.shape[d + 1 :])
            if not torch.equal(first.unsqueeze(d).expand_as(each), each):
                return None
        return d, Folded(first, (*self.shape[:d], count, *self.shape[d + 1 :]))

    def array(self, path: str) -> Array | Later:
        """The numbers, with an extent of 1 for samples where all of them have the same.

        Raises
        ------
        UserError
            If they depend on how many samples there are.
        """
        if self.unknown:
            extents = tuple(
                1 if extent == SAMPLES and stride == 0 else extent
                for extent, stride in zip(self.shape, self.tensor.stride(), strict=True)
            )
            return Later.never(extents, without_values(self.unknown))
        if self.second is not None and not _begins_with(self.second, self.tensor, self.shape):
            raise UserError(
                f"a constant{at(path)} depends on the number of samples, so that a sample's result "
                "would depend on the batch that it is in"
            )
        value = _shared_by_samples(self.tensor, self.shape)
        return numbers(self.tensor).copy() if value is None else value


def is_random(target: Any) -> bool:
    """Whether an operation can draw numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def evaluate(
    target: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    batch: Any,
    shape_of: Callable[[Any, int], Shape],
    shapes_alone: bool = False,
) -> Any:
    """An operation on constants: a `Folded`, or a list of them.

    Parameters
    ----------
    target, args, kwargs
        The operation and its arguments; nodes among them are read for their shapes alone.
    batch
        The symbol of the number of samples.
    shape_of
        The shape of the result's tensor of that number, for any number of samples.
    shapes_alone
        Whether it reads no element of its arguments.
    """
    unknown = "" if shapes_alone else unknown_of((args, kwargs))
    first = _computed(target, args, kwargs, batch, PROBE, bool(unknown))
    second = None
    if _counts_samples((args, kwargs)):
        second = _computed(target, args, kwargs, batch, SECOND_PROBE, bool(unknown))
    if isinstance(first, list | tuple):
        rest = second if second is not None else [None] * len(first)
        pairs = enumerate(zip(first, rest, strict=True))
        return [Folded(a, shape_of(a, i), b, unknown) for i, (a, b) in pairs]
    return Folded(first, shape_of(first, 0), second, unknown)


def unknown_of(value: Any) -> str:
    """The buffer without values of which a value is computed; empty where there is none."""
    leaves = tree_leaves(value)
    return next((v.unknown for v in leaves if isinstance(v, Folded) and v.unknown), "")


def concrete_shape(shape: Shape, samples: int) -> Shape:
    """Extents for a number of samples."""
    return tuple(e // SAMPLES * samples if e and e % SAMPLES == 0 else e for e in shape)


def concrete(value: Any, batch: Any, samples: int) -> Any:
    """An argument as it is for a number of samples."""
    if isinstance(value, Folded):
        return value.tensor if samples == PROBE or value.second is None else value.second
    if isinstance(value, Node):
        shape = concrete_shape(value.shape, samples)
        return torch.empty(shape, dtype=getattr(torch, value.type.dtype), device="meta")
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        number = sympy.sympify(value.node.expr).subs(batch, samples)
        if number.free_symbols:
            raise UserError(f"a constant depends on the data ({number})")
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
        return kind(number)
    if isinstance(value, dict):
        return {name: concrete(part, batch, samples) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(concrete(part, batch, samples) for part in value)
    return value


def _computed(
    target: Any, args: list[Any], kwargs: dict[str, Any], batch: Any, n: int, is_unknown: bool
) -> Any:
    given, options = concrete((args, kwargs), batch, n)
    if is_unknown:
        given, options = tree_map_only((torch.Tensor, torch.device), on_meta, (given, options))
    else:
        # A module without values is on the device "meta", but its constants are computed.
        given, options = tree_map_only(torch.device, _on_host, (given, options))
        if any(isinstance(a, torch.Tensor) and a.is_meta for a in given):
            options["device"] = torch.device("cpu")  # of what is made like a node's value
    with torch.no_grad():
        result = target(*given, **options)
    if "empty" in target.__name__:  # whatever lies there; a network that reads it reads anything
        result.zero_()
    return result


def on_meta(value: torch.Tensor | torch.device) -> torch.Tensor | torch.device:
    """The same shape without values, or the device of such tensors."""
    return value.to("meta") if isinstance(value, torch.Tensor) else torch.device("meta")


def _on_host(device: torch.device) -> torch.device:
    return torch.device("cpu") if device.type == "meta" else device


def _counts_samples(value: Any) -> bool:
    if isinstance(value, Folded):
        return value.second is not None
    if isinstance(value, Node):
        return any(e % SAMPLES == 0 for e in value.shape)
    if isinstance(value, dict):
        return any(_counts_samples(part) for part in value.values())
    if isinstance(value, list | tuple):
        return any(_counts_samples(part) for part in value)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _begins_with(more: torch.Tensor, some: torch.Tensor, shape: Shape) -> bool:
    """Whether the first samples of `more` are `some`."""
    for d, extent in enumerate(shape):
        if extent and extent % SAMPLES == 0:
            more = more.narrow(d, 0, some.shape[d])
    a, b = numbers(more), numbers(some)
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def _shared_by_samples(tensor: torch.Tensor, shape: Shape) -> Array | None:
    """A copy with an extent of 1 for samples, or None if it differs from sample to sample."""
    for d, extent in enumerate(shape):
        if extent == SAMPLES:
            first = tensor.narrow(d, 0, 1)
            if not torch.equal(first.expand_as(tensor), tensor):
                return None
            tensor = first
        elif extent and extent % SAMPLES == 0:
            return None  # samples merged with positions
    return numbers(tensor.contiguous()).copy()
