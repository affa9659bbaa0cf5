"""What a plan for JAX begins with."""

# mypy: disable-error-code="no-untyped-call, no-any-return"

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from flexlegion.exporters.jax_training import home, mesh, once_more

# begin
Weights = Mapping[str, Array]


class Operand(NamedTuple):
    """How an operator reads a tensor: see `read`."""

    tensor: Array
    spec: Spec
    once: tuple[str, ...]
    gathered: bool


def read(tensor: Array, spec: Spec, once: tuple[str, ...] = (), gathered: bool = False) -> Operand:
    """An operand: where it has to lie, by its dimensions.

    Along the axes `once`, all but the first device take zeros: the operand is a term of a sum. One
    that is `gathered` is a weight of which nothing is kept for the backward pass but where it is
    stored: what is gathered or moved of it is so once more.
    """
    return Operand(tensor, spec, once, gathered)


def arranged(devices: Sequence[Any]) -> Mesh:
    """Devices as a mesh, in their order."""
    automatic = (jax.sharding.AxisType.Auto,) * len(SIZES)  # the compiler divides what is between
    return jax.make_mesh(SIZES, AXES, devices=devices, axis_types=automatic)


def run(
    function: Callable[..., Any],
    operands: Sequence[Operand],
    outputs: Sequence[Spec | None],
    **attributes: Any,
) -> Any:
    """Apply a function to operands that lie so; its results are to lie as `outputs` say."""

    def on_whole(*tensors: Array) -> Any:
        with products():
            return function(*tensors, **attributes)

    results = gathering(on_whole, operands)
    several = results if isinstance(results, tuple) else (results,)
    kept = [placed(result, spec) for result, spec in zip(several, outputs, strict=False)]
    return kept[0] if len(outputs) == 1 else tuple(kept)


def run_tiles(
    function: Callable[..., Any],
    operands: Sequence[Operand],
    outputs: Sequence[Spec],
    partial: tuple[str, ...] = (),
    **attributes: Any,
) -> Any:
    """Apply a function to each device's tiles of the operands; they make the output's tiles.

    Along the axes `partial` these are summed. For convolutions: if the compiler divides them, some
    gradients are wrong.
    """

    def on_tiles(*tiles: Array) -> Array:
        given = [
            tile * (lax.axis_index(operand.once) == 0) if operand.once else tile
            for tile, operand in zip(tiles, operands, strict=True)
        ]
        with products():
            result = function(*given, **attributes)
        return lax.psum(result, partial) if partial else result

    specs = tuple(operand.spec for operand in operands)
    mapped = jax.shard_map(on_tiles, mesh=mesh(), in_specs=specs, out_specs=outputs[0])
    return gathering(mapped, operands)


def gathering(function: Callable[..., Any], operands: Sequence[Operand]) -> Any:
    """Apply a function to operands, each where it has to lie.

    The backward pass gathers once more what is gathered for it.
    """
    tensors = [
        operand.tensor if operand.gathered else placed(operand.tensor, operand.spec)
        for operand in operands
    ]
    if not any(operand.gathered for operand in operands):
        return function(*tensors)

    def of(*tensors: Array) -> Any:
        given = [
            placed(tensor, operand.spec) if operand.gathered else tensor
            for tensor, operand in zip(tensors, operands, strict=True)
        ]
        return function(*given)

    return once_more(of, policy=is_kept)(*tensors)


def is_kept(primitive: Any, *_: Any, **__: Any) -> bool:
    """Whether the backward pass finds a result of a function that gathers weights.

    Not if something has been moved only: of a weight, that would be a copy.
    """
    return primitive.name not in MOVES


MOVES = {
    "broadcast_in_dim",
    "convert_element_type",
    "reshape",
    "sharding_constraint",
    "slice",
    "squeeze",
    "transpose",
}


def products() -> Any:
    """A context in which products have the program's precision; "fp32" leaves JAX's own."""
    if PRECISION == "tf32":
        return jax.default_matmul_precision("tensorfloat32")
    return contextlib.nullcontext()


def placed(tensor: Array, spec: Spec | None) -> Array:
    """A tensor that lies so; None: as the compiler likes it."""
    if spec is None:
        return tensor
    return lax.with_sharding_constraint(tensor, NamedSharding(mesh(), spec))


def distributed(weights: Mapping[str, Any]) -> dict[str, Array]:
    """Weights by name on the devices, each where WEIGHTS says."""
    return {
        name: jax.device_put(jnp.asarray(weights[name]), NamedSharding(home(place), place.stored))
        for name, place in WEIGHTS.items()
    }


def trained(weights: Weights) -> dict[str, Array]:
    """Those that training changes, for `jax.grad`."""
    return {name: value for name, value in weights.items() if WEIGHTS[name].trained}


class Place(NamedTuple):
    """Where a weight is: its first reader has it as `spec`.

    It is `kept` in shards, if that is said, as its gradient and the optimizer's states are. Of
    "weights", the backward pass gathers it once more. In a pipeline, these `runs` read it.
    """

    spec: Spec
    trained: bool
    kept: Spec | None = None
    sharding: str = "states"
    runs: tuple[int, ...] = (0,)

    @property
    def stored(self) -> Spec:
        """How it lies between iterations."""
        return self.spec if self.kept is None else self.kept


class Form(NamedTuple):
    """How the module has an input, labels or an output, and how the program's tensor has it.

    The module's `shape`, cut into the dimensions `cut`, in this `order`, is the tensor's: `stored`.
    Labels may differ from the shape in extents of 1: they are `loose`.
    """

    shape: tuple[int, ...]
    cut: tuple[int, ...]
    order: tuple[int, ...]
    stored: tuple[int, ...]
    loose: bool

    def taken(self, name: str, value: Any) -> Array:
        """Data as the program has them; `ValueError` if their shape is another one."""
        array = jnp.asarray(value)
        if not fits(array.shape, self.shape, self.loose):
            raise ValueError(
                f"{name} has shape {list(array.shape)}, but the program takes {list(self.shape)}"
            )
        return array.reshape(self.cut).transpose(self.order).reshape(self.stored)

    def parts(self, name: str, value: Any, count: int) -> Array:
        """Data of so many batches, each by itself; `ValueError` if their shape is another one."""
        array = jnp.asarray(value)
        at = self.order[0]  # the dimension of the samples
        before = math.prod(self.cut[:at])
        d = next(d for d in range(len(self.shape)) if math.prod(self.shape[:d]) == before)
        wanted = (*self.shape[:d], count * self.shape[d], *self.shape[d + 1 :])
        if not fits(array.shape, wanted, self.loose):
            raise ValueError(
                f"{name} has shape {list(array.shape)}, but the program takes {list(wanted)}, in "
                f"{count} micro-batches"
            )
        cut = array.reshape(*self.cut[:at], count, self.cut[at], *self.cut[at + 1 :])
        return jnp.moveaxis(cut, at, 0).reshape(count, *self.shape)

    def made(self, tensor: Array) -> Array:
        """An output as the module has it."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return tensor[: self.cut[back.index(0)]].transpose(back).reshape(self.shape)


def fits(shape: tuple[int, ...], wanted: tuple[int, ...], loose: bool) -> bool:
    """Whether data have a shape; or differ in extents of 1, where they may."""
    tight = [extent for extent in wanted[1:] if extent != 1]
    if shape == wanted or not (loose or not tight):
        return shape == wanted
    return shape[:1] == wanted[:1] and [extent for extent in shape[1:] if extent != 1] == tight


def mean(values: Array, counts: Array | None, parts: int = 1) -> Array:
    """The mean of a loss over the batch: by what its labels count, if that is said.

    The batch has so many `parts`, of one of which these are the values; the labels are all of them.
    """
    if counts is None:
        return values.mean() / parts
    total = counts.sum()
    return values.sum() / jnp.where(total > 0, total, 1)


# end
PRECISION: str = "fp32"
SIZES: tuple[int, ...] = ()
AXES: tuple[str, ...] = ()
WEIGHTS: dict[str, Place] = {}
