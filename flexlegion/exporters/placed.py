"""How the operands of an operator lie on a mesh, and what that takes of each device's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from flexlegion.console.text import memory
from flexlegion.exporters.pipelines import Pipeline
from flexlegion.exporters.regions import outside, regions, weights_of
from flexlegion.exporters.shards import WeightBytes, weight_bytes, weight_place, weight_places
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.tensor import Tensor
from flexlegion.sim.problem import Problem
from flexlegion.spmd.axes import Axes, Division
from flexlegion.spmd.layout import Entry, entries
from flexlegion.spmd.memory import capacity
from flexlegion.strategy.configuration import ParallelConfig, Sharding


@dataclass(frozen=True)
class ProgramMemory:
    """What each device keeps while an exported program trains, in bytes; all keep equally much.

    Attributes
    ----------
    weights, weight_gradients, optimizer_states : int
        Of the parts of weights that the device uses, or of its shards. This is exact.
    activations : int
        The batch, which every device is given whole, the results of operators, and copies of those
        that the backward pass reads otherwise than they lie; of what is computed again, the most
        that is there at a time. Programs for DTensor need at least
        this, and more for what operators keep inside for the backward pass, and for what comes and
        goes, as gradients of activations do; JAX's compiler may save some of it.
    capacity : int
        Of the device's memory, or of its share if several devices have one memory; the smallest.
    """

    weights: int
    weight_gradients: int
    optimizer_states: int
    activations: int
    capacity: int

    @property
    def needed(self) -> int:
        """All of it together: the least that the device needs."""
        return self.weights + self.weight_gradients + self.optimizer_states + self.activations

    @property
    def fits(self) -> bool:
        """Whether that is within each device's memory; if so, there has to be room for more."""
        return self.needed <= self.capacity

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"needed": self.needed, "fits": self.fits}

    def __str__(self) -> str:
        parts = [
            f"{memory(size)} of {what}"
            for size, what in (
                (self.weights, "weights"),
                (self.weight_gradients, "their gradients"),
                (self.optimizer_states, "the optimizer's states"),
                (self.activations, "activations"),
            )
            if size
        ]
        verdict = "that fits, if the rest is enough for what comes and goes"
        return (
            f"each device needs {memory(self.needed)} at least ({', '.join(parts)}), of "
            f"{memory(self.capacity)}: {verdict if self.fits else 'it does not fit'}"
        )


def program_memory(
    problem: Problem,
    divisions: Mapping[str, Division],
    strategy: Mapping[str, ParallelConfig],
    axes: Axes,
    pipeline: Pipeline | None = None,
) -> ProgramMemory:
    """What a program keeps on each device; of a pipeline, on those of the fullest stage.

    Parameters
    ----------
    problem
        Its graph with the losses, the machine, and the optimizer.
    divisions
        Of each operator.
    strategy
        Of each operator; which are run again, and what of their weights is sharded.
    axes
        Of the mesh.
    pipeline
        Its stages, if it has several.
    """
    graph, states = problem.graph, problem.optimizer_states
    sharding = {op.name: strategy[op.name].sharding for op in graph.operators}
    places = weight_places(graph, divisions, sharding, states, problem.granularity.shard_bytes)
    again = {op for op in graph.operators if strategy[op.name].again}
    found = []
    for runs in _runs_of_stages(graph, pipeline):
        read = {weight for run, _ in runs for op in run for weight in weights_of(op)}
        its = WeightBytes()
        for weight, place in places.items():
            if weight in read:
                its += weight_bytes(weight, place, axes, states, graph.micro_batches)
        activations = given_bytes(graph)
        for run, in_flight in runs:
            always, most = _activations(run, divisions, again, axes)
            activations += in_flight * always + most
        room = capacity(problem.topology)
        found.append(ProgramMemory(its.values, its.gradients, its.states, activations, room))
    return max(found, key=lambda memory: memory.needed)


def _runs_of_stages(
    graph: Graph, pipeline: Pipeline | None
) -> list[list[tuple[Sequence[Operator], int]]]:
    """Of each stage: rows of operators, and of how many micro-batches they have activations."""
    if pipeline is None:
        return [[(graph.operators, 1)]]
    stages = len(pipeline.stages)
    return [
        [(pipeline.runs[n], pipeline.in_flight[n]) for n in range(s, len(pipeline.runs), stages)]
        for s in range(stages)
    ]


def _activations(
    operators: Sequence[Operator],
    divisions: Mapping[str, Division],
    again: Set[Operator],
    axes: Axes,
) -> tuple[int, int]:
    """Bytes of operators' results, and of copies; and of what is computed again at a time."""
    rows = regions(operators, again)
    kept = outside(rows, ())
    always = most = 0
    lies: dict[Tensor, list[Entry]] = {}
    for region in rows:
        inner = 0
        for op in region.operators:
            for role, tensor, access in op.operands:
                placed = entries(divisions[op.name], access, role)
                size = _part(tensor, placed, axes) * tensor.element_bytes
                received = role == "input" and tensor.kind == "activation" and tensor not in lies
                moved = access.saved and role == "input" and lies.get(tensor, placed) != placed
                if role == "output" or received:
                    lies[tensor] = placed
                elif not moved:
                    continue
                if region.again and (moved or tensor not in kept):
                    inner += size
                else:
                    always += size
        most = max(most, inner)
    return always, most


def kept(
    operator: Operator, division: Division, problem: Problem, sharding: Sharding
) -> list[tuple[int, tuple[Entry, ...]]]:
    """For searches: of each operand what is kept on each device, and how that lies.

    Added up by the rules of ``native/sim/program_memory.h``, it is what a program needs; where
    operators are run again, not more than that. Of weights it has their gradients and their
    optimizer's states with them.
    """
    states, shard_bytes = problem.optimizer_states, problem.granularity.shard_bytes
    result = []
    for role, tensor, access in operator.operands:
        placed = entries(division, access, role)
        if tensor.kind == "weight":
            place = weight_place(tensor, access, division, sharding, states, shard_bytes)
            rounds = problem.graph.micro_batches
            its = weight_bytes(tensor, place, division.axes, states, rounds)
            size = its.values + its.gradients + its.states
        else:
            size = _part(tensor, placed, division.axes) * tensor.element_bytes
        result.append((size, tuple(placed)))
    return result


def given_bytes(graph: Graph) -> int:
    """What every device has of a batch: all of it."""
    its = sum(prod(tensor.shape) * tensor.element_bytes for tensor in graph.inputs)
    return graph.micro_batches * its


def _part(tensor: Tensor, placed: Sequence[Entry], axes: Axes) -> int:
    """Elements of a tensor on each device."""
    split = (size for size, its in zip(axes.sizes, placed, strict=True) if isinstance(its, int))
    return prod(tensor.shape) // prod(split)
