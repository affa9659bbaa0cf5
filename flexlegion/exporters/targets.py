"""What DTensor and JAX can express of a strategy: for each operator, one division of one mesh.

Both targets compute an operator by the same function of tensors as one device would, so that a plan
for them computes the same whatever the strategy; what may be refused is how it is divided.

For DTensor every operator runs as `local_map` of its function over tiles. That is right if a task's
tile follows from the tiles of its operands in an even cut, as access maps say it; and DTensor's own
rules, some of which are silently wrong (convolutions split by input channels), are never asked.
JAX's compiler divides functions itself, halos included, as sharding constraints say; but for
convolutions, which run as `shard_map` of their function over tiles. If it divides those, gradients
are wrong wherever height or width is divided along one axis of the mesh and channels, or nothing,
along another (jax 0.10.2; some divisions of groups end the process).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import lcm
from types import ModuleType
from typing import Any, Literal, get_args

from flexlegion.exporters.arguments import function_of, with_weights
from flexlegion.exporters.own_functions import OwnFunction, own_function
from flexlegion.exporters.placed import (
    ProgramMemory,
    given_bytes,
    kept,
    program_memory,
)
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import Access, DimKind, DimMap
from flexlegion.machine.topology import Topology
from flexlegion.sim.problem import Problem
from flexlegion.spmd.axes import Axes, Division
from flexlegion.spmd.layout import Entry
from flexlegion.spmd.memory import capacity
from flexlegion.strategy.configuration import Sharding
from flexlegion.strategy.strategy import ResolvedStrategy

TargetName = Literal["dtensor", "jax"]
TARGETS: tuple[TargetName, ...] = get_args(TargetName)


_CONVOLUTIONS = ("conv1d", "conv2d", "conv2d_transpose")


@dataclass(frozen=True)
class Target:
    """DTensor or JAX.

    Parameters
    ----------
    name
        Which.
    axes
        Of the mesh.
    """

    name: TargetName
    axes: Axes

    @property
    def modules(self) -> tuple[ModuleType, ModuleType]:
        """What has the operators' functions, by type."""
        if self.name == "jax":
            from flexlegion.exporters import jax_functions, jax_layers

            return jax_functions, jax_layers
        from flexlegion.exporters import torch_functions, torch_layers

        return torch_functions, torch_layers

    def function(self, operator: Operator) -> Callable[..., Any] | None:
        """What computes an operator; None: there is nothing."""
        own = self.own_function(operator)
        return function_of(operator, self.modules) if own is None else own.function

    def own_function(self, operator: Operator) -> OwnFunction | None:
        """What computes an operator of a user's own; None: it is none, or has no function."""
        return own_function(with_weights(operator).kind, self.name)

    def refusal(self, operator: Operator, division: Division) -> str | None:
        """Why the target cannot divide an operator in this way; None: it can."""
        for d, dim in enumerate(operator.dims):
            parts, extent = division.parts(d), operator.space[d]
            if parts == 1:
                continue
            if dim.kind is DimKind.PART:
                return "partial values stay apart"
            if extent % parts:
                return f"{extent} of {dim.name} are not cut evenly into {parts} parts"
            if self.runs_tiles(operator) and (reason := _refused_tiles(operator, d, parts)):
                return reason
        return None

    def runs_tiles(self, operator: Operator) -> bool:
        """Whether the program applies an operator's function to tiles, not to whole tensors."""
        return self.name == "dtensor" or with_weights(operator).kind.type in _CONVOLUTIONS

    def kept(
        self, operator: Operator, degrees: tuple[int, ...], problem: Problem, sharding: Sharding
    ) -> list[tuple[int, tuple[Entry, ...]]] | None:
        """As `placed.kept`, of tasks on the first devices in order; None: there is no program."""
        division = self.axes.ascending(degrees)
        return None if division is None else kept(operator, division, problem, sharding)

    def room(self, graph: Graph, topology: Topology) -> tuple[int, int]:
        """Bytes of each device, and what is kept there whatever the strategy."""
        return capacity(topology), given_bytes(graph)

    def memory(self, problem: Problem, strategy: ResolvedStrategy) -> ProgramMemory | None:
        """What a program needs that does as a strategy says; None: there is no such program."""
        divisions = {}
        for operator in problem.graph.operators:
            config = strategy[operator.name]
            numbers = [problem.devices.number(device) for device in config.devices]
            division = self.axes.divided(config.degrees, numbers)
            if division is None or self.refusal(operator, division) is not None:
                return None
            divisions[operator.name] = division
        return program_memory(problem, divisions, strategy, self.axes)

    def allows(self, operator: Operator, degrees: tuple[int, ...]) -> bool:
        """Whether it can be split so on the first devices, in order."""
        division = self.axes.ascending(degrees)
        return division is not None and self.refusal(operator, division) is None


def padding_of(graph: Graph, strategy: ResolvedStrategy) -> str | None:
    """What to do about tokens that a strategy cuts into uneven parts; None: it cuts none so.

    Tokens are the rows of tables and the classes of a loss.
    """
    cuts: dict[int, int] = {}  # of so many tokens, into how many parts operators cut them together
    rows: set[int] = set()  # of tables
    for op in graph.operators:
        degrees = strategy[op.name].degrees
        for dim, extent, degree in zip(op.dims, op.space, degrees, strict=True):
            if dim.name == "row":
                rows.add(extent)
            if dim.name == "row" or (dim.name == "class" and op.kind.part_of_loss):
                cuts[extent] = lcm(cuts.get(extent, 1), degree)
    for extent, parts in cuts.items():
        if extent % parts:
            padded = -(-extent // parts) * parts
            what = "tokens" if extent in rows else "classes"
            return (
                f"{'the vocabulary' if extent in rows else 'the output'} of {extent:,} is not cut "
                f"evenly into {parts} parts; give the model {padded:,} {what}, some of which no "
                "data have, and it is"
            )
    return None


def _refused_tiles(operator: Operator, d: int, parts: int) -> str | None:
    """Why an operator's function of tiles does not give tiles, if a dimension is divided."""
    name = operator.dims[d].name
    for role, tensor, access in operator.operands:
        for its, extent in zip(access.map, tensor.shape, strict=True):
            if its.out_dim != d:
                continue
            if its.prefix:
                return f"parts of {name} read what stands before them"
            if not _even(its, operator.space[d], extent, parts):
                return f"parts of {name} read halos"
        if role == "output" and not is_along(access, d) and access.combine != "sum":
            # DTensor's maximum of partial values has a gradient for each of them.
            return f"parts of {name} are combined by a {access.combine.replace('_', '-')}"
    kind = with_weights(operator).kind
    groups = getattr(kind, "groups", 1)
    along = is_along(operator.operands[0][2], d)
    if kind.type == "conv2d" and groups > 1 and name == "channel" and not along:
        return "parts of channel read their groups of several channels"
    return None


def is_along(access: Access, d: int) -> bool:
    """Whether an operand has a dimension that goes with one of the operator's."""
    return any(its.out_dim == d and not its.prefix for its in access.map)


def _even(its: DimMap, space: int, extent: int, parts: int) -> bool:
    """Whether even parts of a dimension need even parts of an operand's."""
    if extent % parts:
        return False
    for part in range(parts):
        low, high = part * space // parts, (part + 1) * space // parts
        first = max(low * its.num // its.den + its.lo_offset, 0)
        last = min(-(-high * its.num // its.den) + its.hi_offset, extent)
        if (first, last) != (part * extent // parts, (part + 1) * extent // parts):
            return False
    return True
