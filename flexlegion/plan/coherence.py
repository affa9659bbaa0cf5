"""What a plan moves, by its rectangles alone: each memory keeps valid what no other one wrote.

It shares nothing with the simulator and the runtime but the plan that both read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.plan.passes import CLOSING
from flexlegion.plan.plan import TRAINS, Box, Launch, Plan, Requirement


class _Field:
    """A tensor field: which of its cells, cut wherever a box begins or ends, are valid where."""

    def __init__(self, boxes: list[Box]) -> None:
        self.edges = [sorted({x for box in boxes for x in box[d]}) for d in range(len(boxes[0]))]
        sizes = [np.diff(edges) for edges in self.edges]
        self.volume = prod(np.ix_(*sizes), start=np.array(1))
        self.valid: dict[str, npt.NDArray[np.bool_]] = {}

    def at(self, box: Box) -> tuple[slice, ...]:
        return tuple(
            slice(edges.index(lo), edges.index(hi))
            for edges, (lo, hi) in zip(self.edges, box, strict=True)
        )

    def read(self, memory: str, box: Box) -> int:
        """How many elements come from other memories."""
        cells = self.at(box)
        mine = self._of(memory)[cells]
        known = np.any([its[cells] for its in self.valid.values()], axis=0)
        moved = int(self.volume[cells][known & ~mine].sum())
        mine[...] = True
        return moved

    def write(self, memory: str, box: Box) -> None:
        for its in [self._of(memory), *self.valid.values()]:
            its[self.at(box)] = False
        self._of(memory)[self.at(box)] = True

    def _of(self, memory: str) -> npt.NDArray[np.bool_]:
        return self.valid.setdefault(memory, np.zeros(self.volume.shape, np.bool_))


@dataclass(frozen=True)
class Move:
    """What a task gets from other memories than its own.

    Parameters
    ----------
    launch, requirement
        What it is launched as, and what it reads.
    task
        Its number in the launch.
    bytes
        How many, in all micro-batches.
    """

    launch: Launch
    requirement: Requirement
    task: int
    bytes: int


def moves(plan: Plan, memory_of: Mapping[str, str]) -> list[Move]:
    """What a training iteration moves between memories.

    Every micro-batch moves what one does, but for weights and their gradients, which are read once
    unless they are sharded.

    Parameters
    ----------
    plan
        What is executed.
    memory_of
        Each device's memory.
    """
    launches = [launch for launch in plan.launches if launch.runs & TRAINS]
    boxes: dict[Any, list[Box]] = defaultdict(list)
    for launch in launches:
        for r in launch.requirements:
            boxes[_field(r)] += [box for box in r.boxes if not _empty(box)]
    fields = {key: _Field(its) for key, its in boxes.items() if its}
    found = []
    for counted in (False, True):  # the first iteration finds nothing valid anywhere
        for launch in launches:
            tasks = list(product(launch.requirements, enumerate(launch.devices)))
            for r, (k, device) in tasks:
                if r.privilege != "write" and not _empty(r.boxes[k]):
                    elements = fields[_field(r)].read(memory_of[device], r.boxes[k])
                    if counted and elements:
                        once = _is_of_iteration(launch, r, plan)
                        times = 1 if once else plan.graph.micro_batches
                        found.append(Move(launch, r, k, times * r.element_bytes * elements))
            for r, (k, device) in tasks:
                if r.privilege != "read" and not _empty(r.boxes[k]):
                    fields[_field(r)].write(memory_of[device], r.boxes[k])
    return found


def moved_bytes(plan: Plan, memory_of: Mapping[str, str]) -> int:
    """Bytes that a training iteration moves between memories; see `moves`."""
    return sum(move.bytes for move in moves(plan, memory_of))


def _is_of_iteration(launch: Launch, r: Requirement, plan: Plan) -> bool:
    """Whether all micro-batches have the same, or add to the same.

    Of sharded weights, each gathers the values, and reduces the gradients.
    """
    if r.tensor.kind != "weight":
        return r.field in plan.of_iteration
    return r.field == "value" or launch.pass_ in CLOSING


def _field(r: Requirement) -> Any:
    return r.tensor, r.field, r.index


def _empty(box: Box) -> bool:
    return any(hi <= lo for lo, hi in box)
