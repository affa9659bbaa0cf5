"""Where operators of a program are: stages of devices, each a mesh, and runs of operators there.

A stage is a set of devices that share operators; without a pipeline there is one. Micro-batches go
from run to run: a run is a row of operators, in the graph's order, on one stage. A stage may have
several (Megatron's interleaved schedule).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from flexlegion.base.errors import UserError
from flexlegion.graph.graph import Graph, Operator
from flexlegion.spmd.axes import Axes, Division
from flexlegion.strategy.pairs import trained
from flexlegion.strategy.strategy import ResolvedStrategy


@dataclass(frozen=True)
class Stage:
    """Devices in a mesh.

    Parameters
    ----------
    devices
        Their numbers, in the mesh's order.
    axes
        The mesh's.
    """

    devices: tuple[int, ...]
    axes: Axes

    def groups(self, along: Sequence[int]) -> list[list[int]]:
        """The devices that differ along these axes alone, as collectives along them have them."""
        found: dict[tuple[int, ...], list[int]] = {}
        for at, device in enumerate(self.devices):
            place = self.axes.digits(at)
            rest = tuple(digit for axis, digit in enumerate(place) if axis not in along)
            found.setdefault(rest, []).append(device)
        return list(found.values())

    def size(self, along: Sequence[int]) -> int:
        """How many such devices there are."""
        size = 1
        for axis in along:
            size *= self.axes.sizes[axis]
        return size


@dataclass(frozen=True, eq=False)
class Run:
    """Operators that a stage has one after the other.

    Parameters
    ----------
    stage
        The number of it.
    operators
        In order.
    """

    stage: int
    operators: tuple[Operator, ...]


@dataclass(frozen=True, eq=False)
class Program:
    """A program for a machine's devices.

    Parameters
    ----------
    graph
        What is trained.
    stages
        Where.
    runs
        In the order in which a micro-batch passes them.
    divisions
        Of each operator, along the axes of its stage.
    again
        Operators that the backward pass runs forward once more.
    shards
        What of weights is kept in shards, as ZeRO's stages: 0 nothing, 1 the optimizer's states, 2
        gradients as well, 3 weights as well.
    replicated
        Axes of the stages along which shards are repeated (hybrid sharding).
    """

    graph: Graph
    stages: tuple[Stage, ...]
    runs: tuple[Run, ...]
    divisions: Mapping[Operator, Division]
    again: frozenset[Operator]
    shards: int = 0
    replicated: tuple[int, ...] = ()

    def shard_axes(self, along: Sequence[int]) -> tuple[int, ...]:
        """Of these axes, those along which a weight is cut into shards."""
        return tuple(axis for axis in along if axis not in self.replicated)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """What runs in training: what losses depend on."""
        return tuple(op for run in self.runs for op in run.operators)

    @cached_property
    def run_of(self) -> dict[Operator, int]:
        """The number of each operator's run."""
        return {op: r for r, run in enumerate(self.runs) for op in run.operators}

    def stage_of(self, operator: Operator) -> Stage:
        """Where an operator is."""
        return self.stages[self.runs[self.run_of[operator]].stage]


_SHARDS = {"states": 1, "gradients": 2, "weights": 3}


def program_of(graph: Graph, strategy: ResolvedStrategy, devices: Sequence[str]) -> Program:
    """The program that does what a strategy says.

    Parameters
    ----------
    graph
        What it is a strategy of.
    strategy
        A configuration for each operator.
    devices
        The machine's, in their order.

    Raises
    ------
    UserError
        If there is none: the tasks of an operator are at no grid of the devices that it shares with
        its neighbours.
    """
    numbers = {name: number for number, name in enumerate(devices)}
    operators = trained(graph)
    places = {op: [numbers[d] for d in strategy[op.name].devices] for op in operators}
    sets = device_sets([frozenset(its) for its in places.values()])
    stages = tuple(Stage(tuple(sorted(its)), Axes.prime(len(its))) for its in sets)
    number_of = {device: n for n, its in enumerate(sets) for device in its}
    divisions = {}
    for op, its in places.items():
        stage = stages[number_of[its[0]]]
        at = {device: n for n, device in enumerate(stage.devices)}
        division = stage.axes.divided(strategy[op.name].degrees, [at[d] for d in its])
        if division is None:
            raise UserError(
                f"operator '{op.name}' has its tasks at no grid of its {len(at)} devices, so there "
                "is no program of collectives that does the same; runtime 'legion' has no such "
                "limit"
            )
        divisions[op] = division
    stage_numbers = [number_of[places[op][0]] for op in operators]
    again = frozenset(op for op in operators if strategy[op.name].again)
    shards = max((_SHARDS[strategy[op.name].sharding] for op in operators), default=0)
    return Program(graph, stages, runs_of(operators, stage_numbers), divisions, again, shards)


def runs_of(operators: Sequence[Operator], stages: Sequence[int]) -> tuple[Run, ...]:
    """Rows of operators on one stage; `stages` has each operator's."""
    rows: list[tuple[int, list[Operator]]] = []
    for op, stage in zip(operators, stages, strict=True):
        if not rows or rows[-1][0] != stage:
            rows.append((stage, []))
        rows[-1][1].append(op)
    return tuple(Run(stage, tuple(its)) for stage, its in rows)


def device_sets(sets: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Sets that have something in common become one; in the order of their first elements."""
    found: list[frozenset[int]] = []
    for its in dict.fromkeys(sets):
        meeting = [other for other in found if other & its]
        found = [other for other in found if not other & its] + [its.union(*meeting)]
    return sorted(found, key=min)
