"""What a plan for JAX begins with."""

# mypy: disable-error-code="no-untyped-call, no-any-return"

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

# begin
Weights = Mapping[str, Array]


class Operand(NamedTuple):
    """How an operator reads a tensor: see `read`."""

    tensor: Array
    spec: Spec
    once: tuple[str, ...]


def read(tensor: Array, spec: Spec, once: tuple[str, ...] = ()) -> Operand:
    """An operand: where it has to lie, by its dimensions.

    Along the axes `once`, all but the first device take zeros: the operand is a term of a sum.
    """
    return Operand(tensor, spec, once)


@functools.cache
def mesh() -> Mesh:
    """The devices, in their order."""
    devices = jax.devices()[: math.prod(SIZES)]
    automatic = (jax.sharding.AxisType.Auto,) * len(SIZES)  # the compiler divides what is between
    return jax.make_mesh(SIZES, AXES, devices=devices, axis_types=automatic)


def run(
    function: Callable[..., Any],
    operands: Sequence[Operand],
    outputs: Sequence[Spec | None],
    **attributes: Any,
) -> Any:
    """Apply a function to operands that lie so; its results are to lie as `outputs` say."""
    given = [placed(operand.tensor, operand.spec) for operand in operands]
    with products():
        results = function(*given, **attributes)
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
    return mapped(*(operand.tensor for operand in operands))


def products() -> Any:
    """A context in which products have the program's precision; "fp32" leaves JAX's own."""
    if PRECISION == "tf32":
        return jax.default_matmul_precision("tensorfloat32")
    return contextlib.nullcontext()


def clipped(gradients: Weights) -> dict[str, Array]:
    """Gradients by weight, scaled down to the norm CLIP_NORM, of all together."""
    if CLIP_NORM is None:
        return dict(gradients)
    norm = jnp.sqrt(sum(jnp.square(gradient).sum() for gradient in gradients.values()))
    factor = jnp.minimum(CLIP_NORM / (norm + 1e-6), 1)
    return {name: gradient * factor for name, gradient in gradients.items()}


def placed(tensor: Array, spec: Spec | None) -> Array:
    """A tensor that lies so; None: as the compiler likes it."""
    if spec is None:
        return tensor
    return lax.with_sharding_constraint(tensor, NamedSharding(mesh(), spec))


def distributed(weights: Mapping[str, Any]) -> dict[str, Array]:
    """Weights by name on the devices, each as the first operator that reads it has it."""
    return {
        name: jax.device_put(jnp.asarray(weights[name]), NamedSharding(mesh(), spec))
        for name, (spec, _) in WEIGHTS.items()
    }


def trained(weights: Weights) -> dict[str, Array]:
    """Those that training changes, for `jax.grad`."""
    return {name: value for name, value in weights.items() if WEIGHTS[name][1]}


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


def mean(values: Array, labels: Array | None) -> Array:
    """The mean of a loss over the batch; of labels, those from 0 on count."""
    if labels is None:
        return values.mean()
    return values.sum() / jnp.maximum((jnp.asarray(labels) >= 0).sum(), 1)


# end
PRECISION: str = "fp32"
CLIP_NORM: float | None = None
SIZES: tuple[int, ...] = ()
AXES: tuple[str, ...] = ()
WEIGHTS: dict[str, tuple[Spec, bool]] = {}
