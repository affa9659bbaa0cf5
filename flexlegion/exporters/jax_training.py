"""How a plan for JAX trains: a plan has what it uses of these functions."""

# mypy: disable-error-code="no-untyped-call, no-any-return"

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh

if TYPE_CHECKING:
    from flexlegion.exporters.jax_runtime import Form, Place, Weights, arranged, placed, trained

# begin


@functools.cache
def mesh() -> Mesh:
    """The devices, in their order."""
    return arranged(jax.devices()[: math.prod(SIZES)])


def home(_: Place) -> Mesh:
    """Where a weight is stored."""
    return mesh()


def once_more(function: Callable[..., Any], policy: Any = None) -> Callable[..., Any]:
    """A function that the backward pass runs again, but for the results that a policy keeps."""
    return jax.checkpoint(function, policy=policy)


def clipped(gradients: Weights) -> dict[str, Array]:
    """Gradients by weight, scaled down to the norm CLIP_NORM, of all together."""
    if CLIP_NORM is None:
        return dict(gradients)
    norm = jnp.sqrt(squares(gradients))
    return scaled(gradients, CLIP_NORM / (norm + 1e-6))


def squares(gradients: Weights) -> Array:
    """The sum of their squares."""
    return sum((jnp.square(gradient).sum() for gradient in gradients.values()), jnp.zeros(()))


def scaled(gradients: Weights, factor: Array) -> dict[str, Array]:
    """Gradients times a factor, if it is below 1."""
    return {name: gradient * jnp.minimum(factor, 1) for name, gradient in gradients.items()}


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

    def of(*tensors: Array) -> tuple[Array, ...]:
        inner = dict(zip(given, tensors, strict=True))
        function(inner)
        return tuple(inner[name] for name in results)

    made = once_more(of)(*(t[name] for name in given))
    t.update(zip(results, made, strict=True))


def in_micro_batches(
    w: Weights, inputs: Mapping[str, Any], labels: Mapping[str, Any], key: Any
) -> tuple[Array, dict[str, Array], dict[str, Array]]:
    """Loss, gradients and new states of a batch that goes through in MICRO_BATCHES parts."""

    def loss_of(its: Weights, mine: Any, wanted: Any, key: Any, whole: Any) -> Any:
        tensors = forward({**w, **its}, *mine, key=key)
        more = {} if whole is None else {"whole": whole}
        value = loss({**w, **its}, tensors, *wanted, **more)
        return value, {name: tensors[name] for name in STATES}

    of_part = jax.value_and_grad(loss_of, has_aux=True)

    def in_shards(gradients: Weights) -> dict[str, Array]:
        return {name: placed(its, WEIGHTS[name].stored) for name, its in gradients.items()}

    its = trained(w)
    if MICRO_BATCHES == 1:
        given = [*inputs.values()], [*labels.values()]
        (value, states), gradients = of_part(its, *given, key, None)
        return value, in_shards(gradients), states

    def step(carried: Any, part: Any) -> Any:
        number, mine, wanted = part
        mine_key = None if key is None else jax.random.fold_in(key, number)
        (value, _), gradients = of_part(its, mine, wanted, mine_key, labels)
        total, sums = carried
        return (total + value, jax.tree.map(jnp.add, sums, in_shards(gradients))), None

    parts = (
        jnp.arange(MICRO_BATCHES),
        [FORMS[name].parts(name, value, MICRO_BATCHES) for name, value in inputs.items()],
        [FORMS[name].parts(name, value, MICRO_BATCHES) for name, value in labels.items()],
    )
    first = jnp.zeros(()), in_shards(jax.tree.map(jnp.zeros_like, its))
    (value, sums), _ = lax.scan(step, first, parts)
    return value, sums, {}


# end
# A plan has values of its own.
CLIP_NORM: float | None = None
SIZES: tuple[int, ...] = ()
MICRO_BATCHES: int = 1
FORMS: dict[str, Form] = {}
WEIGHTS: dict[str, Place] = {}
STATES: tuple[str, ...] = ()
forward: Callable[..., dict[str, Any]] = dict
loss: Callable[..., Array] = jnp.zeros
