"""How a plan for DTensor trains in less memory: a plan has what it uses of these functions.

Operators that are computed again, micro-batches, and weights that are gathered from shards.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from flexlegion.exporters.dtensor_runtime import Form, Operand, Place, Weights

# begin


def devices(kind: str) -> DeviceMesh:
    """All processes' devices."""
    return init_device_mesh(kind, SIZES, mesh_dim_names=AXES)


def again(
    function: Callable[[dict[str, Any]], None],
    t: dict[str, Any],
    given: Sequence[str],
    results: Sequence[str],
) -> None:
    """Run operators, which the backward pass runs again: only what is given and results are kept.

    Parameters
    ----------
    function
        Adds what the operators compute to what it is given, by name.
    t
        Tensors by name, to which the results are added.
    given, results
        Names.
    """

    def of(*tensors: Tensor) -> tuple[Tensor, ...]:
        inner = dict(zip(given, tensors, strict=True))
        with running_again():
            function(inner)
        return tuple(inner[name] for name in results)

    # Masks are functions of a key, so that no state of random numbers has to be kept.
    made = checkpoint(of, *map(t.get, given), use_reentrant=False, preserve_rng_state=False)
    t.update(zip(results, made, strict=True))


@contextlib.contextmanager
def running_again() -> Iterator[None]:
    """While operators run whose inner tensors are not kept."""
    RUNNING_AGAIN.append(True)
    try:
        yield
    finally:
        RUNNING_AGAIN.pop()


RUNNING_AGAIN: list[bool] = []


@contextlib.contextmanager
def gathered_again(operands: Sequence[Operand], tiles: Sequence[Tensor]) -> Iterator[None]:
    """A context that keeps, of weights that were gathered into these tiles, their shards alone.

    Where the backward pass needs such a tile, or its rounded copy, it gathers the weight once more.
    Of operators that are run again, nothing is kept anyway.
    """
    gathered = [
        (tile, Gathered(operand))
        for operand, tile in zip(operands, tiles, strict=True)
        if operand.gathered and operand.tensor.placements != operand.placements
    ]
    if not gathered or RUNNING_AGAIN or not torch.is_grad_enabled():
        yield
        return

    def pack(tensor: Tensor) -> Any:
        base = tensor._base if tensor._is_view() and tensor._base is not None else tensor
        source: Any = base.grad_fn
        rounded = source is not None and source.name() == "ToCopyBackward0"
        for tile, its in gathered:
            same = tensor.untyped_storage().data_ptr() == tile.untyped_storage().data_ptr()
            if same or (rounded and source.next_functions[0][0] is tile.grad_fn):
                its.wanted += 1
                return its, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
        return tensor

    def unpack(kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        its, dtype, *view = kept
        tile: Tensor = its.tile().to(dtype).as_strided(*view)
        return tile

    with saved_tensors_hooks(pack, unpack):
        yield
    gathered.clear()  # nobody else keeps the tiles


class Gathered:
    """A gathered weight of an operator, which is there until all have had it who wanted it."""

    def __init__(self, operand: Operand) -> None:
        self.operand = operand
        self.wanted = self.had = 0
        self.there: Tensor | None = None

    def tile(self) -> Tensor:
        tile = self.there
        if tile is None:
            kept: Any = self.operand.tensor.detach()
            tile = kept.redistribute(placements=self.operand.placements).to_local()
            if hasattr(tile, "wait"):
                tile = tile.wait()
        self.had += 1
        self.there = tile if self.had % self.wanted else None
        return tile


class Copy(torch.autograd.Function):
    """A device's part of a weight, of which the gradients of several micro-batches add up.

    They stay partial values on each device, and are not summed over the devices each time.
    """

    @staticmethod
    def forward(ctx: Any, tile: Tensor, mesh: DeviceMesh, place: Place) -> DTensor:
        ctx.gradient = place.gradient
        return DTensor.from_local(tile, mesh, place.placements, run_check=False)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        return gradient.redistribute(placements=ctx.gradient).to_local(), None, None


def in_micro_batches(
    w: Weights, inputs: Mapping[str, Tensor], labels: Mapping[str, Tensor]
) -> Tensor:
    """The loss of a batch that goes through forward and backward in MICRO_BATCHES parts.

    Gradients add up in the parameters' `grad`.
    """
    if MICRO_BATCHES == 1:
        value = loss(w, forward(w, *inputs.values()), *labels.values())
        value.backward()
        return value.detach()
    mine = [share_of(w, name, x).parts(name, x, MICRO_BATCHES) for name, x in inputs.items()]
    its = [share_of(w, name, x).parts(name, x, MICRO_BATCHES) for name, x in labels.items()]
    total: Any = 0
    with adding_up(w):
        for number in range(MICRO_BATCHES):
            w.micro_batch = number
            results = forward(w, *(parts[number] for parts in mine))
            value = loss(w, results, *(parts[number] for parts in its), whole=labels)
            value.backward()
            total = total + value.detach()
    return torch.as_tensor(total)


def share_of(w: Weights, name: str, value: Tensor) -> Form:
    """The form of what a process is given of an input in a micro-batch."""
    form = FORMS[name]
    return form.sized(value, MICRO_BATCHES) if MULTIPLE else form.of(form.samples // w.shares)


@contextlib.contextmanager
def adding_up(w: Weights) -> Iterator[None]:
    """While micro-batches go through: each weight has a copy, to which gradients add up.

    They are reduced over the devices at the end; or, where gradients are sharded, as soon as they
    are there, in each micro-batch. Weights that each use gathers have no copy.
    """
    for name in w.names:
        place = WEIGHTS[name]
        if place.trained and not (place.kept and place.sharding == "weights"):
            kept: Any = w[name].detach()
            copy = kept.redistribute(placements=place.placements).to_local()
            w.copies[name] = copy.detach().requires_grad_()
            if place.kept and place.sharding == "gradients":
                w.copies[name].register_post_accumulate_grad_hook(
                    lambda _, name=name: reduce_gradient(w, name)
                )
    try:
        yield
        for name in w.copies:
            reduce_gradient(w, name)
    finally:
        w.copies.clear()
        w.micro_batch = 0


def reduce_gradient(w: Weights, name: str) -> None:
    """Sum the gradient of a weight's copies over the devices, and add it to the parameter's."""
    copy, place, parameter = w.copies[name], WEIGHTS[name], getattr(w, w.names[name])
    if copy.grad is not None:
        partial = DTensor.from_local(copy.grad, w.mesh, place.gradient, run_check=False)
        reduced = partial.redistribute(placements=parameter.placements)
        parameter.grad = reduced if parameter.grad is None else parameter.grad + reduced
        copy.grad = None


# end
# A plan has values of its own.
MULTIPLE: int = 0
AXES: tuple[str, ...] = ()
SIZES: tuple[int, ...] = ()
MICRO_BATCHES: int = 1
FORMS: dict[str, Form] = {}
WEIGHTS: dict[str, Place] = {}
forward: Callable[..., dict[str, Any]] = dict
loss: Callable[..., Tensor] = torch.zeros
