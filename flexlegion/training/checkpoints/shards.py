"""What training keeps from iteration to iteration, from Legion's memories to the host and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from flexlegion.graph.tensor import Tensor
from flexlegion.objective.losses import kept_weights
from flexlegion.objective.optimizers import EMA, Optimizer
from flexlegion.training.checkpoints.files import Array, Box, key_of
from flexlegion.training.program import HostShard, Program


@dataclass(frozen=True)
class Kept:
    """A field that lives from iteration to iteration.

    Parameters
    ----------
    key
        Its name in a checkpoint.
    tensor
        The weight.
    field, state
        As in `Program.read`.
    """

    key: str
    tensor: Tensor
    field: str = "value"
    state: int = 0


def weights_of(program: Program) -> list[Kept]:
    """The weights: parameters, running averages, and arrays that nothing changes."""
    return [Kept(tensor.name, tensor) for tensor in kept_weights(program.plan.graph)]


def states_of(program: Program, optimizer: Optimizer) -> list[Kept]:
    """The optimizer's states of the weights that are trained."""
    return [
        Kept(f"{tensor.name}/{name}", tensor, "state", number)
        for tensor in program.plan.graph.weights
        if program.updates(tensor)
        for number, name in enumerate(optimizer.state_names)
    ]


def averages_of(program: Program, optimizer: Optimizer) -> list[Kept]:
    """The moving averages of weights, which are states."""
    return [one for one in states_of(program, optimizer) if one.key.endswith(f"/{EMA}")]


class HostCopy:
    """Host memory for this rank's shards, taken once and filled for each checkpoint.

    Every rank has one, and calls `take` at the same time. What nothing changes is copied the first
    time only, and is the first rank's to write.

    Parameters
    ----------
    program
        The running program.
    rank
        Of this process.
    kept
        What to copy.
    """

    def __init__(self, program: Program, rank: int, kept: list[Kept]) -> None:
        self._program = program
        self.arrays: dict[str, Array] = {}  # by their keys in this rank's file
        self._constants = [one for one in kept if one.tensor.constant]
        self._first = rank == 0
        self._shards = [
            shard for one in kept if not one.tensor.constant for shard in self._shards_of(one, rank)
        ]

    def take(self) -> None:
        """Copy all that changes; nothing may be running."""
        for one in self._constants:
            value = self._program.read(one.tensor)
            if self._first:
                self.arrays[one.key] = value
        self._constants = []
        self._program.save(self._shards)

    def _shards_of(self, one: Kept, rank: int) -> Iterator[HostShard]:
        homes = self._program.home(one.tensor)
        mine = [box for its_rank, box in homes if its_rank == rank and _volume(box)]
        # Where this rank's shards are a box together, they are one array, in many cases the whole.
        joined = _bounding(mine) if mine else ()
        together = sum(map(_volume, mine)) == _volume(joined)
        if mine and together:
            whole = all(hi - lo == n for (lo, hi), n in zip(joined, one.tensor.shape, strict=True))
            joint = self._add(one, None if whole else joined, joined)
        for number, (its_rank, box) in enumerate(homes):
            if its_rank != rank:
                yield HostShard(one.tensor, one.field, one.state, number, None)
            elif not _volume(box):  # a part of which nothing is left: there is nothing to write
                empty = np.empty([hi - lo for lo, hi in box], one.tensor.host_dtype)
                yield HostShard(one.tensor, one.field, one.state, number, empty)
            elif together:
                inside = zip(box, joined, strict=True)
                part = joint[
                    tuple(slice(lo - start, hi - start) for (lo, hi), (start, _) in inside)
                ]
                yield HostShard(one.tensor, one.field, one.state, number, part)
            else:
                yield HostShard(one.tensor, one.field, one.state, number, self._add(one, box, box))

    def _add(self, one: Kept, named: Box | None, box: Box) -> Array:
        array = np.empty([hi - lo for lo, hi in box], one.tensor.host_dtype)
        self.arrays[key_of(one.key, named)] = array
        return array


def put(program: Program, kept: list[Kept], read: Callable[[str], Array]) -> None:
    """Write values into the running program, whatever its strategy is.

    Parameters
    ----------
    program
        The running program.
    kept
        What to write.
    read
        Gives the whole array for a key.
    """
    for one in kept:
        program.write(one.tensor, read(one.key), one.field, one.state)


def _bounding(boxes: list[Box]) -> Box:
    return tuple(
        (min(lo for lo, _ in bounds), max(hi for _, hi in bounds))
        for bounds in zip(*boxes, strict=True)
    )


def _volume(box: Box) -> int:
    return math.prod(hi - lo for lo, hi in box)
