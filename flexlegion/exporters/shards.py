"""Where a program keeps weights: as their first reader has them, or in shards.

Devices that use the same part of a weight can share out what is kept of it. As in training here,
they share out the optimizer's states, if it has any, and so the values that it changes; what more
is shared out is the strategy's to say (`ParallelConfig.sharding`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from flexlegion.graph.graph import Graph
from flexlegion.graph.operator_type import Access
from flexlegion.graph.tensor import ELEMENT_BYTES, STATE_BYTES, Tensor
from flexlegion.spmd.axes import Axes, Division
from flexlegion.spmd.layout import Layout, elements, entries
from flexlegion.strategy.configuration import SHARDING, Sharding


@dataclass(frozen=True)
class WeightPlace:
    """Where a weight is, along each axis of the mesh.

    Parameters
    ----------
    used
        As its first reader has it.
    gradient
        As its gradient comes out there.
    kept
        As the optimizer has it: `used`, or shards of that.
    sharding
        What is sharded, if anything is.
    """

    used: Layout
    gradient: Layout
    kept: Layout
    sharding: Sharding = SHARDING[0]

    @property
    def is_sharded(self) -> bool:
        """Whether each device that uses a part of the weight keeps a shard of that."""
        return self.kept != self.used

    @property
    def is_gathered_again(self) -> bool:
        """Whether it is gathered for each use, in the backward pass as well."""
        return self.is_sharded and self.sharding == "weights"


def weight_places(
    graph: Graph,
    divisions: Mapping[str, Division],
    sharding: Mapping[str, Sharding],
    states: int,
    shard_bytes: int,
) -> dict[Tensor, WeightPlace]:
    """Where each weight of a program is that its operators read.

    Parameters
    ----------
    graph
        Whose weights.
    divisions, sharding
        Of each operator of the program: what each axis divides; what of its weights is sharded.
    states
        Fields of the optimizer.
    shard_bytes
        See `Granularity`.
    """
    found: dict[Tensor, WeightPlace] = {}
    for op in graph.operators:
        for _, weight, access in op.operands:
            if weight.kind == "weight" and weight not in found and op.name in divisions:
                division, what = divisions[op.name], sharding[op.name]
                its = weight_place(weight, access, division, what, states, shard_bytes)
                found[weight] = its
    return {weight: found[weight] for weight in graph.weights if weight in found}


def weight_place(
    weight: Tensor,
    access: Access,
    division: Division,
    what: Sharding,
    states: int,
    shard_bytes: int,
) -> WeightPlace:
    """Where a weight is whose first reader is divided so; see `weight_places`."""
    used = tuple(entries(division, access, "weight"))
    gradient = tuple(entries(division, access, "weight", gradient=True))
    kept = used
    if weight.requires_gradient and (states or what != "states"):
        kept = sharded(weight, used, division.axes, shard_bytes)
    return WeightPlace(used, gradient, kept, what)


def sharded(weight: Tensor, used: Layout, axes: Axes, shard_bytes: int) -> Layout:
    """How a weight lies in shards, one for each device that uses it so; `used` if it is not cut.

    It is cut along one dimension, evenly. A dimension that the next axes divide already is not cut,
    as shards would lie crosswise to these parts; and one that others divide only if no other can
    be.
    """
    free = [a for a, entry in enumerate(used) if entry == "R" and axes.sizes[a] > 1]
    shards = prod(axes.sizes[a] for a in free)
    if not free or _bytes(weight, used, axes) < shards * max(shard_bytes, 1):
        return used

    def parts(d: int) -> int:
        return prod(size for size, entry in zip(axes.sizes, used, strict=True) if entry == d)

    fit = [
        d
        for d, extent in enumerate(weight.shape)
        if extent % (parts(d) * shards) == 0 and d not in used[free[0] :]
    ]
    if not fit:
        return used
    d = min(fit, key=lambda its: (parts(its) > 1, its))
    return tuple(d if a in free else entry for a, entry in enumerate(used))


@dataclass(frozen=True)
class WeightBytes:
    """What a device keeps of a weight, or of several."""

    values: int = 0
    gradients: int = 0
    states: int = 0

    def __add__(self, other: WeightBytes) -> WeightBytes:
        return WeightBytes(
            self.values + other.values,
            self.gradients + other.gradients,
            self.states + other.states,
        )


def weight_bytes(
    weight: Tensor, place: WeightPlace, axes: Axes, states: int, micro_batches: int = 1
) -> WeightBytes:
    """What a device keeps of a weight for the whole iteration.

    Parameters
    ----------
    weight, place, axes
        Which, where, on which mesh.
    states
        Fields of the optimizer.
    micro_batches
        Until the last of several, gradients are whole unless they are sharded.
    """
    each = ELEMENT_BYTES[weight.host_dtype]  # as arrays of the host have it
    whole, shard = (elements(weight.shape, its, axes) for its in (place.used, place.kept))
    if not weight.requires_gradient:
        return WeightBytes(whole * each)
    values = shard if place.is_gathered_again or not place.is_sharded else shard + whole
    added_up = place.sharding == "states" and place.is_sharded and micro_batches > 1
    gradients = whole if added_up else shard
    return WeightBytes(values * each, gradients * each, shard * states * STATE_BYTES)


def _bytes(weight: Tensor, layout: Layout, axes: Axes) -> int:
    return elements(weight.shape, layout, axes) * ELEMENT_BYTES[weight.host_dtype]
