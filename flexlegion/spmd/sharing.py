"""Gradients and weights that devices share: reduced, and gathered, beside the computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flexlegion.graph.graph import Operator
from flexlegion.graph.tensor import Tensor
from flexlegion.spmd.layout import Collective
from flexlegion.spmd.program import Stage

if TYPE_CHECKING:
    from flexlegion.spmd.steps import StageSteps, Steps


class Buckets:
    """Gradients of weights that are reduced together, as the backward pass comes by them."""

    def __init__(self, stage_steps: StageSteps, steps: Steps, stage: Stage, reduces: bool) -> None:
        self.of = stage_steps
        self.steps = steps
        self.stage = stage
        self.reduces = reduces
        self.sizes: dict[tuple[int, ...], int] = {}
        self.last = -1

    def add(self, op: Operator, end: int) -> None:
        if not self.reduces:
            return
        for number, weight in enumerate(op.weights):
            # The gradients of all who use a weight are added up before: the first is the last here.
            if weight.requires_gradient and self.of.is_first_user(op, weight):
                size, along = self.of.reduced(op, number)
                size *= self.of.system.gradient_bytes(weight)
                if along:
                    self.sizes[along] = self.sizes.get(along, 0) + size
        self.last = end
        if self.of.system.overlaps:
            self.flush(self.of.system.bucket_bytes)

    def flush(self, least: int = 1) -> None:
        """Reduce what is there, if it is that much."""
        for along, size in self.sizes.items():
            if size >= least:
                self._reduce(along, size)
                self.sizes[along] = 0

    def _reduce(self, along: tuple[int, ...], size: int) -> None:
        program = self.of.program
        over = program.shard_axes(along) if program.shards else ()
        rest = tuple(axis for axis in along if axis not in over)
        ways: tuple[tuple[Collective, tuple[int, ...]], ...] = (
            ("reduce-scatter", over),
            ("all-reduce", rest),
        )
        for name, axes in ways:
            parts = self.stage.size(axes)
            if parts > 1:
                time_ns = self.of.collectives.time_ns(name, size, self.stage, axes)
                sent = round(size * (1 - 1 / parts) * (2 if name == "all-reduce" else 1))
                taken = self.of.collectives.taken(self.stage, axes)
                self.steps.add("gradients", time_ns, [self.last], sent, taken)
                size //= parts if name == "reduce-scatter" else 1


class Gathers:
    """Weights in shards that are gathered before they are used, a bucket ahead."""

    def __init__(
        self, stage_steps: StageSteps, steps: Steps, operators: Sequence[Operator]
    ) -> None:
        self.steps = steps
        self.bucket_of: dict[Operator, int] = {}
        self.gathered: list[int] = []  # of each bucket, the step that gathers it
        self.last_use: dict[int, int] = {}
        self.times: list[tuple[int, int, float]] = []  # of each, what `Steps.add` takes
        if stage_steps.program.shards < 3 or not operators:
            return
        stage = stage_steps.program.stage_of(operators[0])
        sizes: dict[tuple[int, ...], int] = {}
        first_used: dict[Operator, list[tuple[int, Tensor]]] = {}
        for op, number, weight in stage_steps.trained_weights(operators):
            first_used.setdefault(op, []).append((number, weight))
        for op in operators:
            for number, weight in first_used.get(op, ()):
                size, along = stage_steps.reduced(op, number)
                over = stage_steps.program.shard_axes(along)
                if over:
                    size *= stage_steps.system.gathered_bytes(weight)
                    sizes[over] = sizes.get(over, 0) + size
            self.bucket_of[op] = len(self.times)
            if sum(sizes.values()) >= stage_steps.system.gather_bytes:
                self._close(stage_steps, stage, sizes)
        self._close(stage_steps, stage, sizes)

    def _close(
        self, stage_steps: StageSteps, stage: Stage, sizes: dict[tuple[int, ...], int]
    ) -> None:
        time_ns, sent, taken = 0, 0, 0.0
        for along, size in sizes.items():
            taken = max(taken, stage_steps.collectives.taken(stage, along))
            time_ns += stage_steps.collectives.time_ns("all-gather", size, stage, along)
            sent += round(size * (1 - 1 / stage.size(along)))
        self.times.append((time_ns, sent, taken))
        sizes.clear()

    def before(self, op: Operator) -> list[int]:
        """What an operator waits for; its bucket and the next one are asked for now."""
        bucket = self.bucket_of.get(op)
        if bucket is None:
            return []
        while len(self.gathered) <= min(bucket + 1, len(self.times) - 1):
            number = len(self.gathered)
            time_ns, sent, taken = self.times[number]
            # Its memory is that of the bucket before the last one.
            after = [self.last_use[number - 2]] if number - 2 in self.last_use else []
            self.gathered.append(self.steps.add("weights", time_ns, after, sent, taken))
        return [self.gathered[bucket]]

    def used(self, op: Operator, end: int) -> None:
        """An operator has run: until then its bucket is needed."""
        if op in self.bucket_of:
            self.last_use[self.bucket_of[op]] = end
