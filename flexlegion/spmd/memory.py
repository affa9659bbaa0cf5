"""What a device of a stage keeps while a program trains, by what it is for.

Of a weight there is the value that the optimizer changes, in single precision, beside it a rounded
one if the model computes with that, its gradient, and the optimizer's states; in shards, where the
program has them so. Of activations there is what the backward pass reads, for each micro-batch that
is under way. What is run again is there for one row of operators at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from flexlegion.cost.model import wanted_gradients
from flexlegion.graph.graph import Operator
from flexlegion.graph.tensor import STATE_BYTES, Tensor
from flexlegion.machine.topology import Topology
from flexlegion.spmd.layout import Layout, elements
from flexlegion.spmd.program import Run
from flexlegion.spmd.steps import StageSteps

GIB = 1 << 30


@dataclass(frozen=True)
class StageMemory:
    """Bytes of a device, by what they are for.

    Parameters
    ----------
    weights, gradients, states
        Of what is trained.
    activations
        Of all micro-batches under way.
    transient
        The most that comes and goes: what is run again, gradients of activations, gathered weights.
    reserved
        What the system keeps for itself.
    """

    weights: int
    gradients: int
    states: int
    activations: int
    transient: int
    reserved: int

    @property
    def needed(self) -> int:
        """All of it."""
        return sum(asdict(self).values())

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"needed": self.needed}


def stage_memory(
    of: StageSteps, stage: int, in_flight: tuple[int, ...], states: int
) -> StageMemory:
    """What a device of a stage keeps.

    Parameters
    ----------
    of
        The program's steps.
    stage
        Which one.
    in_flight
        Of each run, how many micro-batches are under way.
    states
        Fields that the optimizer keeps of each weight.
    """
    program, system = of.program, of.system
    runs = [(n, run) for n, run in enumerate(program.runs) if run.stage == stage]
    weights, gradients, optimizer, largest = _of_weights(of, stage, states)
    activations = redone = 0
    for number, run in runs:
        kept, again = _kept(of, run)
        activations += kept * in_flight[number]
        redone = max(redone, again)
    passing = max((_passing(of, op) for _, run in runs for op in run.operators), default=0)
    gathered = 2 * max(largest, system.gather_bytes) if program.shards > 2 else 0
    transient = redone + passing + gathered
    return StageMemory(weights, gradients, optimizer, activations, transient, system.reserved)


def _of_weights(of: StageSteps, stage: int, states: int) -> tuple[int, int, int, int]:
    """Bytes of values, of gradients, of what the optimizer has, and of the largest value."""
    program, system, mesh = of.program, of.system, of.program.stages[stage]
    values = gradients = optimizer = largest = 0
    seen: set[Tensor] = set()
    mine = [op for run in program.runs if run.stage == stage for op in run.operators]
    uses = [(op, number, weight) for op in mine for number, weight in enumerate(op.weights)]
    for op, number, weight in uses:
        if weight in seen:
            continue
        seen.add(weight)
        size = elements(weight.shape, of.layout(op, "weight", number), mesh.axes)
        value = size * system.gathered_bytes(weight)
        _, along = of.reduced(op, number)
        shards = mesh.size(program.shard_axes(along))
        values += value // (shards if program.shards > 2 else 1)
        if weight.requires_gradient:
            largest = max(largest, value)
            gradient = size * system.gradient_bytes(weight)
            gradients += gradient // (shards if program.shards > 1 else 1)
            # What the optimizer changes is in single precision, with its states.
            master = 0 if system.gathered_bytes(weight) == 4 else 4
            optimizer += size * (states * STATE_BYTES + master) // (shards if program.shards else 1)
    return values, gradients, optimizer, largest


def _kept(of: StageSteps, run: Run) -> tuple[int, int]:
    """Of a micro-batch: bytes that are kept for the backward pass; and the most of a row again."""
    kept: dict[tuple[Tensor, Layout], int] = {}
    most = 0
    row: dict[tuple[Tensor, Layout], int] = {}
    for op in run.operators:
        again = op in of.program.again
        if not again:
            most, row = max(most, sum(row.values())), {}
        for tensor, layout, saved in _operands(of, op):
            source = _source(of, tensor)
            produced_again = source.producer in of.program.again and source.producer is not None
            size = elements(tensor.shape, layout, of.program.stage_of(op).axes)
            size *= tensor.element_bytes
            if again:
                if not produced_again:
                    kept[source, layout] = size  # from which it is run again
                elif saved:
                    row[source, layout] = size
            elif saved:
                kept[source, layout] = size
        inner = of.system.kept_inside(op, of.inner_elements(op))
        if again:
            row[op.output, ()] = row.get((op.output, ()), 0) + inner
        else:
            kept[op.output, ()] = inner
    return sum(kept.values()), max(most, sum(row.values()))


def _operands(of: StageSteps, op: Operator) -> Iterable[tuple[Tensor, Layout, bool]]:
    """Activations that an operator reads and writes; whether the backward pass reads them."""
    for role, number, tensor, access in of.operands[op]:
        if role != "weight":
            yield tensor, of.layout(op, role, number), access.saved


def _source(of: StageSteps, tensor: Tensor) -> Tensor:
    """Of a view what it views."""
    while tensor.producer is not None and of.system.is_view(tensor.producer):
        tensor = tensor.producer.inputs[0]
    return tensor


def _passing(of: StageSteps, op: Operator) -> int:
    """Gradients of activations while an operator's backward pass runs."""
    axes = of.program.stage_of(op).axes
    size = sum(
        elements(t.shape, of.layout(op, "output", n), axes) * t.gradient_bytes
        for n, t in enumerate(op.outputs)
    )
    for n, (tensor, wanted) in enumerate(zip(op.inputs, wanted_gradients(op), strict=True)):
        if wanted:
            size += elements(tensor.shape, of.layout(op, "input", n), axes) * tensor.gradient_bytes
    return size


def capacity(topology: Topology) -> int:
    """Of a device's memory, or of its share where several have one; the smallest."""
    devices: dict[str, int] = {}
    for device in topology.devices:
        devices[device.memory] = devices.get(device.memory, 0) + 1
    return min(d.memory_bytes // devices[d.memory] for d in topology.devices)
