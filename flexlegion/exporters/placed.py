"""How the operands of an operator lie on a mesh, and what that takes of each device's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from flexlegion.console.text import memory
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.tensor import ELEMENT_BYTES, STATE_BYTES, Tensor
from flexlegion.sim.problem import Problem
from flexlegion.spmd.axes import Axes, Division
from flexlegion.spmd.layout import Entry, entries, first_reader
from flexlegion.spmd.memory import capacity


@dataclass(frozen=True)
class ProgramMemory:
    """What each device keeps while an exported program trains, in bytes; all keep equally much.

    Nothing is shared out among devices that use the same part of a weight, unlike in training here,
    where its gradients are added up and its optimizer's states are kept in one place.

    Attributes
    ----------
    weights, weight_gradients, optimizer_states : int
        Of the parts of weights that the device uses. This is exact.
    activations : int
        The batch, which every device is given whole, the results of operators, and copies of those
        that the backward pass reads otherwise than they lie. Programs for DTensor need at least
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
    problem: Problem, divisions: Mapping[str, Division], axes: Axes
) -> ProgramMemory:
    """What a program keeps on each device.

    Parameters
    ----------
    problem
        Its graph with the losses, the machine, and the optimizer.
    divisions
        Of each operator.
    axes
        Of the mesh.
    """
    graph = problem.graph
    weights = gradients = states = 0
    for weight in graph.weights:
        op, access = first_reader(graph, weight)
        its = _part(weight, entries(divisions[op.name], access, "weight"), axes)
        value, gradient, its_states = _bytes_of_weight(weight, problem.optimizer_states)
        weights += its * value
        gradients += its * gradient
        states += its * its_states
    activations = given_bytes(graph)
    lies: dict[Tensor, list[Entry]] = {}
    for op in graph.operators:
        for role, tensor, access in op.operands:
            placed = entries(divisions[op.name], access, role)
            if role == "output":
                lies[tensor] = placed
                activations += _part(tensor, placed, axes) * tensor.element_bytes
            elif access.saved and role == "input" and lies.get(tensor, placed) != placed:
                activations += _part(tensor, placed, axes) * tensor.element_bytes
    return ProgramMemory(weights, gradients, states, activations, capacity(problem.topology))


def kept(
    operator: Operator, division: Division, states: int
) -> list[tuple[int, tuple[Entry, ...]]]:
    """For searches: of each operand what is kept on each device, and how that lies.

    Added up by the rules of `program_memory` (``native/sim/program_memory.h``), it is what a
    program needs. Of weights it has their gradients and their optimizer's `states` with them.
    """
    result = []
    for role, tensor, access in operator.operands:
        placed = entries(division, access, role)
        is_weight = tensor.kind == "weight"
        size = sum(_bytes_of_weight(tensor, states)) if is_weight else tensor.element_bytes
        result.append((_part(tensor, placed, division.axes) * size, tuple(placed)))
    return result


def given_bytes(graph: Graph) -> int:
    """What every device has of a batch: all of it."""
    return sum(prod(tensor.shape) * tensor.element_bytes for tensor in graph.inputs)


def _part(tensor: Tensor, placed: Sequence[Entry], axes: Axes) -> int:
    """Elements of a tensor on each device."""
    split = (size for size, its in zip(axes.sizes, placed, strict=True) if isinstance(its, int))
    return prod(tensor.shape) // prod(split)


def _bytes_of_weight(weight: Tensor, states: int) -> tuple[int, int, int]:
    """Of an element: of its value, its gradient, and its optimizer's states."""
    value = ELEMENT_BYTES[weight.host_dtype]  # as arrays of the host have it
    trained = int(weight.requires_gradient)
    return value, trained * value, trained * states * STATE_BYTES
