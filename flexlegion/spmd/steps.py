"""What a device of a stage does in turn: computation and collectives, which may run side by side.

A run's forward pass computes its operators in order. Before an operator, what it reads is brought
to the layout that it needs: a collective that the operator waits for. Readers that need a tensor in
the same layout share one. The backward pass goes the other way: partial gradients of all readers
are added up first, and moved once. Gradients of weights are collected in buckets, and reduced while
the backward pass goes on. Weights that are kept in shards are gathered bucket by bucket, each while
the one before it is used.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Literal

from flexlegion.cost.model import CostModel, Shapes, wanted_gradients
from flexlegion.graph.graph import Operator
from flexlegion.graph.operator_type import Access
from flexlegion.graph.tensor import Tensor, TensorRole
from flexlegion.machine.parts import Device
from flexlegion.machine.topology import Topology
from flexlegion.ops.attention import MultiHeadAttention
from flexlegion.ops.experts import Experts
from flexlegion.spmd.collectives import Collectives
from flexlegion.spmd.layout import Layout, elements, entries, gradient_of, moves, part_of
from flexlegion.spmd.program import Program, Run, Stage
from flexlegion.spmd.sharing import Buckets, Gathers
from flexlegion.spmd.system import System

# What a step is for. The last four are collectives.
Kind = Literal["forward", "backward", "again", "update", "activations", "gradients", "weights"]
Prices = dict[Hashable, int]
COLLECTIVES: tuple[Kind, ...] = ("activations", "gradients", "weights")


@dataclass(frozen=True)
class Step:
    """Something that a device does.

    Parameters
    ----------
    kind
        What for.
    time_ns
        How long, alone.
    after
        Numbers of earlier steps that have to have ended.
    size
        Bytes that the device sends, of a collective.
    taken
        Share of the device that computes nothing while this runs, of a collective.
    """

    kind: Kind
    time_ns: int
    after: tuple[int, ...] = ()
    size: int = 0
    taken: float = 0.0


@dataclass
class Steps:
    """Steps in the order of issue; each stream takes its own in this order.

    Parameters
    ----------
    streams
        Of the device: computation and collectives have one each, or share one.
    steps
        In that order.
    """

    streams: Literal[1, 2] = 2
    steps: list[Step] = field(default_factory=list)

    def add(
        self,
        kind: Kind,
        time_ns: int,
        after: Iterable[int] = (),
        size: int = 0,
        taken: float = 0.0,
    ) -> int:
        """A step more; its number."""
        self.steps.append(Step(kind, time_ns, tuple(sorted(set(after))), size, taken))
        return len(self.steps) - 1

    def played(self) -> Played:
        """When they run if nothing else does."""
        if self.streams == 2 and any(step.taken for step in self.steps):
            return self._beside_each_other()
        free = {False: 0, True: 0}
        ends: list[int] = []
        busy: dict[Kind, int] = {}
        for step in self.steps:
            second = self.streams == 2 and step.kind in COLLECTIVES
            start = max([free[second], *(ends[n] for n in step.after)])
            ends.append(start + step.time_ns)
            free[second] = ends[-1]
            busy[step.kind] = busy.get(step.kind, 0) + step.time_ns
        return Played(max(free.values()), busy, self._sent())

    def _beside_each_other(self) -> Played:
        """The same where computation is slower while a collective runs: from end to end."""
        queues = (
            [n for n, step in enumerate(self.steps) if step.kind not in COLLECTIVES],
            [n for n, step in enumerate(self.steps) if step.kind in COLLECTIVES],
        )
        ended = [False] * len(self.steps)
        at, left = [0, 0], [-1.0, -1.0]  # of each stream, and of its step; below 0: it waits
        now = 0.0
        busy: dict[Kind, float] = {}
        for _ in self.steps:
            for stream, queue in enumerate(queues):
                if left[stream] < 0 and at[stream] < len(queue):
                    step = self.steps[queue[at[stream]]]
                    if all(ended[n] for n in step.after):
                        left[stream] = step.time_ns
            rate = 1 - self.steps[queues[1][at[1]]].taken if left[1] > 0 else 1.0
            computing, moving = left[0] / rate, left[1]
            first = 0 if moving < 0 or 0 <= computing <= moving else 1
            passed = moving if first else computing
            now += passed
            for stream, speed in ((0, rate), (1, 1.0)):
                if left[stream] >= 0:
                    kind = self.steps[queues[stream][at[stream]]].kind
                    busy[kind] = busy.get(kind, 0) + passed
                    left[stream] = max(0.0, left[stream] - passed * speed)
            left[first] = -1.0
            ended[queues[first][at[first]]] = True
            at[first] += 1
        return Played(round(now), {kind: round(its) for kind, its in busy.items()}, self._sent())

    def _sent(self) -> int:
        return sum(step.size for step in self.steps)


@dataclass(frozen=True)
class Played:
    """How long steps take.

    Parameters
    ----------
    time_ns
        Until all have ended.
    busy_ns
        By kind, the sum of their times.
    sent_bytes
        What the device sends.
    """

    time_ns: int
    busy_ns: dict[Kind, int]
    sent_bytes: int

    @property
    def exposed_ns(self) -> int:
        """How long the device does nothing but wait for collectives."""
        computing = sum(t for kind, t in self.busy_ns.items() if kind not in COLLECTIVES)
        return self.time_ns - computing


class StageSteps:
    """Makes the steps of a program's runs.

    Parameters
    ----------
    program
        The program.
    topology, costs
        Where it runs, and what tasks take there.
    collectives
        What collectives take.
    system
        How it is run.
    prices
        What the cost model has said, to be asked once; of the same costs alone.
    """

    def __init__(
        self,
        program: Program,
        topology: Topology,
        costs: CostModel,
        collectives: Collectives,
        system: System,
        prices: Prices | None = None,
    ) -> None:
        self.prices: Prices = {} if prices is None else prices
        self.program = program
        self.topology = topology
        self.costs = costs
        self.collectives = collectives
        self.system = system
        self.readers: dict[Tensor, list[Operator]] = {}
        for op in program.operators:
            for tensor in op.inputs:
                self.readers.setdefault(tensor, []).append(op)
        self.operands = {op: _numbered(op) for op in program.operators}
        self._described = {
            op: tuple(
                (its.shape, its.element_bytes, its.gradient_bytes, its.requires_gradient)
                for _, _, its, _ in operands
            )
            for op, operands in self.operands.items()
        }
        self._layouts = {op: self._layouts_of(op) for op in program.operators}
        self._times: dict[tuple[Operator, str], int] = {}
        self._first_users: dict[tuple[int, Tensor], Operator] = {}
        for run in program.runs:
            for op in run.operators:
                for weight in op.weights:
                    self._first_users.setdefault((run.stage, weight), op)

    def _layouts_of(self, op: Operator) -> dict[tuple[str, int], Layout]:
        """Of each operand, by its role and number, how it lies; of inputs the gradient as well."""
        division = self.program.divisions[op]
        found: dict[tuple[str, int], Layout] = {}
        for role, number, _, access in self.operands[op]:
            found[role, number] = tuple(entries(division, access, role))
            if role != "output":
                found[f"{role} gradient", number] = tuple(entries(division, access, role, True))
        return found

    def layout(self, op: Operator, role: str, number: int) -> Layout:
        """How an operand lies; ``"input gradient"`` or ``"weight gradient"``: how its gradient."""
        return self._layouts[op][role, number]

    def output_layout(self, tensor: Tensor) -> Layout | None:
        """How a tensor is computed; None: it is not."""
        op = tensor.producer
        if op is None:
            return None
        return self.layout(op, "output", op.outputs.index(tensor))

    def compute_ns(self, op: Operator, pass_: str) -> int:
        """What a device takes for its part of an operator."""
        time_ns = self._times.get((op, pass_))
        if time_ns is None:
            time_ns = self._times[op, pass_] = self._compute_ns(op, pass_)
        return time_ns

    def _compute_ns(self, op: Operator, pass_: str) -> int:
        if self.system.is_view(op):
            return 0
        if pass_ == "backward" and not (any(wanted_gradients(op)) or op.trained_weights):
            return 0
        axes = self.program.stage_of(op).axes
        shapes = [
            part_of(tensor.shape, self.layout(op, role, number), axes)
            for role, number, tensor, _ in self.operands[op]
        ]
        device = self.device(self.program.stage_of(op))
        shares = 1
        if isinstance(op.kind, MultiHeadAttention) and op.kind.causal:
            # Where the length is split, positions are dealt out so that all attend to as much.
            length, part = op.output.shape[1], shapes[0][1]
            shares = -(-length // part)
            shapes = [
                (shape[0], tensor.shape[1], *shape[2:])
                for shape, (_, _, tensor, _) in zip(shapes, self.operands[op], strict=True)
            ]
        time_ns = self._price(op, pass_, tuple(shapes), device) // shares
        return max(time_ns, self.system.issue_ns)

    def _price(self, op: Operator, pass_: str, shapes: Shapes, device: Device) -> int:
        """What the cost model says of a task: of layers that are alike, it is asked once."""
        key = (op.kind, self._described[op], pass_, shapes, device)
        time_ns = self.prices.get(key)
        if time_ns is None:
            time_ns = self.prices[key] = self.costs.exe_time(op, pass_, shapes, device).time_ns
        return time_ns

    def inner_elements(self, op: Operator) -> int:
        """Scores of attention on a device: of each head, a row of keys for each query."""
        if not isinstance(op.kind, MultiHeadAttention):
            return 0
        axes = self.program.stage_of(op).axes
        queries = part_of(op.inputs[0].shape, self.layout(op, "input", 0), axes)
        keys = part_of(op.inputs[1].shape, self.layout(op, "input", 1), axes)
        return prod(queries[:3]) * keys[1]

    def device(self, stage: Stage) -> Device:
        """A stage's first device, as which all of it are."""
        return self.topology.devices[stage.devices[0]]

    def forward(self, run: Run) -> Steps:
        """A run's forward pass."""
        steps = Steps(self.system.streams)
        self._forward(steps, run.operators, "forward")
        return steps

    def _forward(self, steps: Steps, operators: Sequence[Operator], kind: Kind) -> None:
        done: dict[Tensor, int] = {}
        moved: dict[tuple[Tensor, Layout], int] = {}
        gathers = Gathers(self, steps, operators)
        for op in operators:
            after = list(gathers.before(op))
            for number, tensor in enumerate(op.inputs):
                wanted = self.layout(op, "input", number)
                after += self._brought(steps, tensor, wanted, op, done, moved)
            end = steps.add(kind, self.compute_ns(op, "forward"), after)
            gathers.used(op, end)
            done.update(dict.fromkeys(op.outputs, end))

    def _brought(
        self,
        steps: Steps,
        tensor: Tensor,
        wanted: Layout,
        reader: Operator,
        done: dict[Tensor, int],
        moved: dict[tuple[Tensor, Layout], int],
    ) -> list[int]:
        """Bring what an operator reads to the layout that it wants; what it has to wait for."""
        here = self.output_layout(tensor)
        if here is None or tensor not in done:
            return []  # of the batch, or sent by the run before
        if (tensor, wanted) not in moved:
            after, stage = [done[tensor]], self.program.stage_of(reader)
            routed = self._routed(tensor, reader)
            way, size = (here, wanted), tensor.element_bytes
            moved[tensor, wanted] = self._move(steps, tensor, size, way, stage, after, routed)
        return [moved[tensor, wanted]]

    def _routed(self, tensor: Tensor, reader: Operator) -> float:
        """To how many experts each row goes, or from how many it comes; 0: to none."""
        if tensor.producer is not None and isinstance(tensor.producer.kind, Experts):
            return tensor.producer.kind.load
        if isinstance(reader.kind, Experts) and tensor is reader.inputs[0]:
            return reader.kind.load
        return 0.0

    def _move(
        self,
        steps: Steps,
        tensor: Tensor,
        element: int,
        way: tuple[Layout, Layout],
        stage: Stage,
        after: Iterable[int],
        routed: float = 0.0,
    ) -> int:
        """All collectives from one layout to another; the number of the last one, or of `after`.

        What is `routed` goes to so many experts: an all-to-all of so many copies of a device's rows
        in place of a gather of all rows, or of a sum of them.
        """
        last = list(after)
        here = way[0]
        if self.system.local_statistics and is_statistic(tensor):
            return max(last, default=-1)
        for name, along, then in moves(*way):
            layout = then if name == "all-gather" else here
            size = elements(tensor.shape, layout, stage.axes) * element
            if routed and name in ("all-gather", "reduce-scatter"):
                name, size = "all-to-all", round(size / stage.size(along) * routed)
            time_ns = self.collectives.time_ns(name, size, stage, along)
            share = 1 - 1 / stage.size(along)
            sent = round(size * share * (2 if name == "all-reduce" else 1))
            taken = self.collectives.taken(stage, along)
            last = [steps.add("activations", time_ns, last, sent, taken)]
            here = then
        return max(last, default=-1)

    def backward(self, run: Run, reduces: bool, adds: bool = False) -> Steps:
        """A run's backward pass.

        With `reduces` gradients of weights are reduced on the way; with `adds` they are added to
        those of micro-batches before.
        """
        steps = Steps(self.system.streams)
        buckets = Buckets(self, steps, self.program.stages[run.stage], reduces)
        gathers = Gathers(self, steps, run.operators[::-1])
        redone: set[Operator] = set()
        done: dict[Tensor, int] = {}  # gradients of what operators computed
        for at in range(len(run.operators) - 1, -1, -1):
            op = run.operators[at]
            if op in self.program.again and op not in redone:
                first = at
                while first and run.operators[first - 1] in self.program.again:
                    first -= 1
                segment = run.operators[first : at + 1]
                self._forward(steps, segment, "again")
                redone.update(segment)
            time_ns = self.compute_ns(op, "backward") + (self._added_ns(op) if adds else 0)
            if not time_ns and not self._passes_on(op):
                continue
            after = list(gathers.before(op))
            for tensor in op.outputs:
                after += self._gradient(steps, tensor, op, done)
            end = steps.add("backward", time_ns, after)
            gathers.used(op, end)
            for tensor, wanted in zip(op.inputs, wanted_gradients(op), strict=True):
                if wanted:
                    done[tensor] = end
            buckets.add(op, end)
        buckets.flush()
        return steps

    def _added_ns(self, op: Operator) -> int:
        """What it takes to add the gradients of an operator's weights to those that are there."""
        weights = [n for n, weight in enumerate(op.weights) if weight.requires_gradient]
        if self.system.accumulates == "product" or not weights:
            return 0
        size = 0
        for number in weights:
            kept = self.system.gradient_bytes(op.weights[number])
            # A product writes gradients as its operands are; both are read, and a sum is written.
            size += self.reduced(op, number)[0] * (op.output.element_bytes + 2 * kept)
        linear, _ = self.costs.linear("update", self.device(self.program.stage_of(op)))
        return linear.time_ns(size)

    def _passes_on(self, op: Operator) -> bool:
        """Whether gradients pass an operator that takes no time."""
        return any(wanted_gradients(op))

    def _gradient(
        self, steps: Steps, tensor: Tensor, op: Operator, done: dict[Tensor, int]
    ) -> list[int]:
        """Bring the gradient of what an operator computed to where it is used."""
        if tensor not in done:
            return []
        wanted = gradient_of(self.layout(op, "output", op.outputs.index(tensor)))
        stage = self.program.stage_of(op)
        ways = {
            self.layout(reader, "input gradient", reader.inputs.index(tensor)): reader
            for reader in self.readers[tensor]
            if self.program.run_of[reader] == self.program.run_of[op]
        }
        ends = [
            self._move(
                steps,
                tensor,
                tensor.gradient_bytes,
                (here, wanted),
                stage,
                [done[tensor]],
                self._routed(tensor, reader),
            )
            for here, reader in sorted(ways.items(), key=lambda its: str(its[0]))
        ]
        return [end for end in ends if end >= 0]

    def is_first_user(self, op: Operator, weight: Tensor) -> bool:
        """Whether an operator is the first of its stage that uses a weight."""
        stage = self.program.runs[self.program.run_of[op]].stage
        return self._first_users[stage, weight] is op

    def trained_weights(
        self, operators: Iterable[Operator]
    ) -> Iterator[tuple[Operator, int, Tensor]]:
        """Each weight that training updates, once: who uses it first, its number there, itself."""
        seen: set[Tensor] = set()
        for op in operators:
            for number, weight in enumerate(op.weights):
                if weight.requires_gradient and weight not in seen:
                    seen.add(weight)
                    yield op, number, weight

    def reduced(self, op: Operator, number: int) -> tuple[int, tuple[int, ...]]:
        """Of a weight's gradient: elements on a device, and the axes along which it is summed."""
        weight = op.weights[number]
        layout = self.layout(op, "weight gradient", number)
        along = tuple(axis for axis, entry in enumerate(layout) if entry == "P")
        axes = self.program.stage_of(op).axes
        return elements(weight.shape, layout, axes), along


def _numbered(op: Operator) -> list[tuple[TensorRole, int, Tensor, Access]]:
    """The operands, each with its number among those of its role."""
    numbers = {"input": count(), "weight": count(), "output": count()}
    return [(role, next(numbers[role]), tensor, access) for role, tensor, access in op.operands]


def is_statistic(tensor: Tensor) -> bool:
    """Whether a tensor has what batch normalization knows of a batch."""
    return tensor.producer is not None and tensor.producer.kind.type in (
        "batch_norm_statistics",
        "batch_norm_moments",
    )
