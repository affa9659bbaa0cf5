"""An iteration of a program: its time, what it consists of, and its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flexlegion.cost.model import ELEMENT_BYTES, CostModel
from flexlegion.graph.graph import Operator
from flexlegion.graph.tensor import STATE_BYTES, Tensor
from flexlegion.machine.topology import Topology
from flexlegion.objective.optimizers import LazyAdam, Optimizer
from flexlegion.spmd.collectives import NCCL, Collectives, Library
from flexlegion.spmd.layout import elements, part_of
from flexlegion.spmd.memory import StageMemory, capacity, stage_memory
from flexlegion.spmd.program import Program
from flexlegion.spmd.schedule import Schedule, Turn, orders, scheduled
from flexlegion.spmd.steps import Kind, Played, Prices, StageSteps
from flexlegion.spmd.system import PYTORCH, System

# Of an update by steps, by how many states the optimizer keeps of a weight: how often elements pass
# memory, and how many kernels there are. Plain SGD adds the decay to the gradient, and that to the
# weight; momentum is scaled and added to before; Adam does so with both moments, and takes a root,
# divides, and adds epsilon; averages of weights are scaled and added to. Gradients are set to zero
# for the next iteration.
_PASSES = (7, 12, 24, 29)
_STEPS = (3, 5, 10, 12)


@dataclass(frozen=True)
class Training:
    """What of the optimizer counts.

    Parameters
    ----------
    states
        Fields that it keeps of each weight.
    clips
        Whether all gradients are clipped by their norm.
    lazy
        Whether an update touches only those rows of a table that were looked up.
    more_bytes
        What it reads and writes more for an element of a weight: as of Adafactor, which keeps sums
        alone, but passes gradients and weights for them.
    sorted_bytes
        What a lazy update reads and writes for each look-up to tell which rows there are, if they
        are sorted for it; 0: they are not.
    """

    states: int = 0
    clips: bool = False
    lazy: bool = False
    more_bytes: int = 0
    sorted_bytes: int = 0

    @classmethod
    def of(cls, optimizer: Optimizer) -> Training:
        """An optimizer's, in systems whose gradients of tables are whole unless it is lazy.

        Plain SGD need not touch the other rows either, and does not in flexlegion's runtime.
        """
        return cls(optimizer.states, optimizer.clips, isinstance(optimizer, LazyAdam))


@dataclass(frozen=True)
class ProgramTimeline:
    """An iteration of a program; of the stage that ends last, unless it says otherwise.

    Parameters
    ----------
    iteration_time_ns
        How long it takes.
    parts_ns
        What of it is for what: ``forward``, ``backward``, ``again`` (what is run again),
        ``update``, ``waiting`` (for collectives, inside runs), ``bubble`` (for other stages).
    busy_ns
        By kind of collective, how long it runs, most of it beside computation.
    sent_bytes
        What a device sends.
    memory
        Of a device of each stage.
    capacity
        Of a device.
    """

    iteration_time_ns: int
    parts_ns: Mapping[str, int]
    busy_ns: Mapping[Kind, int]
    sent_bytes: int
    memory: tuple[StageMemory, ...]
    capacity: int

    @property
    def fits(self) -> bool:
        """Whether every device has what its stage needs."""
        return max(its.needed for its in self.memory) <= self.capacity

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "iteration_time_ns": self.iteration_time_ns,
            "parts_ns": dict(self.parts_ns),
            "collectives_ns": dict(self.busy_ns),
            "sent_bytes": self.sent_bytes,
            "memory": [its.facts() for its in self.memory],
            "capacity": self.capacity,
            "fits": self.fits,
        }


def simulated(
    program: Program,
    topology: Topology,
    costs: CostModel,
    training: Training,
    system: System = PYTORCH,
    library: Library = NCCL,
    prices: Prices | None = None,
) -> ProgramTimeline:
    """Simulate an iteration.

    Parameters
    ----------
    program
        What runs.
    topology, costs
        Where, and what tasks take there.
    training
        What of the optimizer counts.
    system, library
        By which framework, and which library of collectives.
    prices
        As of `StageSteps`.
    """
    collectives = Collectives(topology, library)
    of = StageSteps(program, topology, costs, collectives, system, prices)
    rounds = program.graph.micro_batches
    forward = [of.forward(run).played() for run in program.runs]
    every = program.shards >= 2  # so that gradients are reduced in each micro-batch
    last = [of.backward(run, True).played() for run in program.runs]
    # Of n micro-batches the gradients of n - 1 are added to what is there.
    usual = last if every else [of.backward(run, False, True).played() for run in program.runs]
    times = {(False, r): its.time_ns for r, its in enumerate(forward)}
    times |= {(True, r): its.time_ns for r, its in enumerate(usual)}
    stages = [run.stage for run in program.runs]
    turns = orders(stages, rounds, system.schedule)
    waits = system.waits_for_sends and len(program.runs) == len(program.stages)
    schedule = scheduled(stages, turns, times, _sends(of), waits)
    ends = _StageEnds(of, program, training, schedule, turns, usual, last)
    ended = [ends.of_stage(stage) for stage in range(len(program.stages))]
    slowest = max(range(len(ended)), key=ended.__getitem__)
    iteration = ended[slowest] + system.step_ns
    mine = [r for r, run in enumerate(program.runs) if run.stage == slowest]
    parts, busy = _parts(mine, rounds, forward, usual, last)
    parts["update"], update_sends = ends.update(slowest)
    parts["host"] = system.step_ns
    parts["bubble"] = max(0, iteration - sum(parts.values()))
    sent = sum(
        rounds * forward[r].sent_bytes + (rounds - 1) * usual[r].sent_bytes + last[r].sent_bytes
        for r in mine
    )
    sent += update_sends
    memory = tuple(
        stage_memory(of, stage, schedule.in_flight, training.states)
        for stage in range(len(program.stages))
    )
    return ProgramTimeline(iteration, parts, busy, sent, memory, capacity(topology))


def _parts(
    mine: Sequence[int],
    rounds: int,
    forward: Sequence[Played],
    usual: Sequence[Played],
    last: Sequence[Played],
) -> tuple[dict[str, int], dict[Kind, int]]:
    """What a stage's time is for, and what its collectives take."""
    parts = {"forward": 0, "backward": 0, "again": 0, "waiting": 0}
    busy: dict[Kind, int] = {"activations": 0, "gradients": 0, "weights": 0}
    for r in mine:
        for times, its in ((rounds, forward[r]), (rounds - 1, usual[r]), (1, last[r])):
            parts["waiting"] += times * its.exposed_ns
            for kind, time_ns in its.busy_ns.items():
                if kind in busy:
                    busy[kind] += times * time_ns
                else:
                    parts[kind] += times * time_ns
    return parts, busy


def _sends(of: StageSteps) -> dict[int, dict[int, int]]:
    """Of each run, the later runs that read what it computes, and what sending it takes."""
    program = of.program
    sizes: dict[tuple[int, int], int] = {}
    gathers: dict[tuple[int, int], int] = {}
    for r, run in enumerate(program.runs):
        for op in run.operators:
            for n, tensor in enumerate(op.outputs):
                for reader in {program.run_of[its] for its in of.readers.get(tensor, ())} - {r}:
                    layout = of.layout(op, "output", n)
                    size = elements(tensor.shape, layout, program.stages[run.stage].axes)
                    size *= tensor.element_bytes
                    whole = tuple(axis for axis, entry in enumerate(layout) if entry == "R")
                    stage = program.stages[program.runs[reader].stage]
                    if of.system.scatters and stage.size(whole) > 1:
                        its = of.collectives.time_ns("all-gather", size, stage, whole)
                        gathers[r, reader] = gathers.get((r, reader), 0) + its
                        size //= stage.size(whole)
                    sizes[r, reader] = sizes.get((r, reader), 0) + size
    found: dict[int, dict[int, int]] = {r: {} for r in range(len(program.runs))}
    for (r, reader), size in sizes.items():
        senders = program.stages[program.runs[r].stage].devices
        receivers = program.stages[program.runs[reader].stage].devices
        count = max(len(senders), len(receivers))
        pairs = [(senders[i % len(senders)], receivers[i % len(receivers)]) for i in range(count)]
        found[r][reader] = of.collectives.send_ns(size, pairs) + gathers.get((r, reader), 0)
    return found


class _StageEnds:
    """When stages have ended: behind the last micro-batch gradients are reduced, and used."""

    def __init__(
        self,
        of: StageSteps,
        program: Program,
        training: Training,
        schedule: Schedule,
        turns: Sequence[Sequence[Turn]],
        usual: Sequence[Played],
        last: Sequence[Played],
    ) -> None:
        self.of = of
        self.program = program
        self.training = training
        self.schedule = schedule
        self.turns = turns
        self.usual = usual
        self.last = last
        self.shared_ns = self._shared()

    def of_stage(self, stage: int) -> int:
        """When its devices have new weights."""
        turn = self.turns[stage][-1]
        extra = sum(
            self.last[r].time_ns - self.usual[r].time_ns
            for r, run in enumerate(self.program.runs)
            if run.stage == stage
        )
        return self.schedule.ends[turn] + extra + self.update(stage)[0]

    def update(self, stage: int) -> tuple[int, int]:
        """What updating its weights takes in ns, and sends: updated shards are gathered then."""
        of, program, training = self.of, self.program, self.training
        mesh = program.stages[stage]
        linear, _ = of.costs.linear("update", of.device(mesh))
        kernels_ns = read = 0
        gathered: dict[tuple[int, ...], int] = {}
        mine = (op for run in program.runs if run.stage == stage for op in run.operators)
        for op, number, weight in of.trained_weights(mine):
            size, along = of.reduced(op, number)
            over = program.shard_axes(along) if program.shards else ()
            if over:
                if program.shards < 3:
                    its = size * of.system.gathered_bytes(weight)
                    gathered[over] = gathered.get(over, 0) + its
                size //= mesh.size(over)
            touched, found = self._touched(op, number, size)
            its = touched * self._element_bytes(op, weight)
            its += found // weight.shape[-1] * training.sorted_bytes
            if of.system.update == "by steps":
                least = _STEPS[training.states] * of.system.issue_ns
                kernels_ns += max(least - round(its * 1e9 / linear.bytes_per_second), 0)
            read += its
        time_ns = linear.time_ns(read) + kernels_ns + self.shared_ns.get(stage, 0)
        sent = 0
        for along, size in gathered.items():
            time_ns += of.collectives.time_ns("all-gather", size, mesh, along)
            sent += round(size * (1 - 1 / mesh.size(along)))
        return time_ns, sent

    def _element_bytes(self, op: Operator, weight: Tensor) -> int:
        """What an update reads and writes for an element of a weight."""
        states, system = self.training.states, self.of.system
        if system.update == "by steps":
            size = _PASSES[states] * ELEMENT_BYTES
        else:
            size = 3 * ELEMENT_BYTES + 2 * states * STATE_BYTES
        size += self.training.more_bytes
        if self.training.clips:
            size += 2 * ELEMENT_BYTES
        if system.gathered_bytes(weight) < ELEMENT_BYTES:
            size += ELEMENT_BYTES + 2  # the new value is rounded
        if system.gradient_bytes(weight) < ELEMENT_BYTES:
            size += ELEMENT_BYTES + 2  # the gradient is widened
        if op.output.dtype == "float16":
            size += 2 * ELEMENT_BYTES  # it is unscaled, and whether it is finite is seen
        return size

    def _touched(self, op: Operator, number: int, size: int) -> tuple[int, int]:
        """Of a weight's elements on the device, how many an update touches; of how many found."""
        if not (self.training.lazy and op.weights[number].table):
            return size, 0
        axes = self.program.stage_of(op).axes
        table = op.weights[number]
        found = elements(op.output.shape, self.of.layout(op, "output", 0), axes)
        rows, _ = part_of(table.shape, self.of.layout(op, "weight", number), axes)
        parts = table.shape[0] // rows
        found *= self.program.graph.micro_batches
        return min(size, -(-found // parts)), found

    def _shared(self) -> dict[int, int]:
        """Weights that several stages use: their gradients are added up between these."""
        users: dict[Tensor, set[int]] = {}
        sizes: dict[Tensor, int] = {}
        for run in self.program.runs:
            for op in run.operators:
                for number, weight in enumerate(op.weights):
                    if weight.requires_gradient:
                        users.setdefault(weight, set()).add(run.stage)
                        size, _ = self.of.reduced(op, number)
                        sizes[weight] = size * self.of.system.gradient_bytes(weight)
        found: dict[int, int] = {}
        for weight, stages in users.items():
            if len(stages) > 1:
                first, *_, last = sorted(stages)
                pairs = list(
                    zip(
                        self.program.stages[first].devices,
                        self.program.stages[last].devices,
                        strict=False,
                    )
                )
                time_ns = self.of.collectives.send_ns(sizes[weight], pairs)
                for stage in stages:
                    found[stage] = found.get(stage, 0) + time_ns
        return found
