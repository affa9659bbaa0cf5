"""Strategies whose operators are on disjoint sets of devices: the stages of a pipeline.

PyTorch's pipelines (`torch.distributed.pipelining`) have stages of equally many devices, in a row
that micro-batches pass once or several times. JAX has no pipelines; programs for it have the same
ones. What a strategy places otherwise is no pipeline, and a program has one mesh of all devices for
it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flexlegion.exporters.regions import weights_of
from flexlegion.graph.graph import Operator
from flexlegion.graph.tensor import Tensor
from flexlegion.objective.losses import losses_of
from flexlegion.sim.problem import Problem
from flexlegion.spmd.program import device_sets, runs_of
from flexlegion.spmd.schedule import group_size, in_flight, orders
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.pairs import trained


@dataclass(frozen=True)
class Pipeline:
    """Stages in a row, and the operators that micro-batches pass there.

    Parameters
    ----------
    stages
        The numbers of each stage's devices, in order.
    runs
        Operators, in the order in which a micro-batch passes them; run r is on stage r modulo the
        number of stages.
    micro_batches
        Of a batch.
    schedule
        In which order micro-batches go forward and backward, as PyTorch calls it: a class of
        `torch.distributed.pipelining`.
    """

    stages: tuple[tuple[int, ...], ...]
    runs: tuple[tuple[Operator, ...], ...]
    micro_batches: int
    schedule: str

    @property
    def rounds(self) -> int:
        """How many runs each stage has."""
        return len(self.runs) // len(self.stages)

    def facts(self) -> dict[str, Any]:
        """For JSON: the devices of each stage, how often a micro-batch passes it, and the order."""
        stages = [list(its) for its in self.stages]
        return {"stages": stages, "rounds": self.rounds, "schedule": self.schedule}

    @property
    def kind(self) -> str:
        """Of the schedule, as `flexlegion.spmd.schedule.orders` has it."""
        return "gpipe" if self.schedule == "ScheduleGPipe" else "1f1b"

    @functools.cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Of each run, of how many micro-batches at most it has activations."""
        stages = [run % len(self.stages) for run in range(len(self.runs))]
        return in_flight(stages, orders(stages, self.micro_batches, self.kind))

    def runs_of(self, weight: Tensor) -> tuple[int, ...]:
        """The runs that read a weight."""
        return tuple(
            n for n, run in enumerate(self.runs) if any(weight in weights_of(op) for op in run)
        )

    def stages_of(self, weight: Tensor) -> tuple[int, ...]:
        """The stages that read a weight; each has it."""
        return tuple(sorted({number % len(self.stages) for number in self.runs_of(weight)}))

    def passed(self) -> list[list[Tensor]]:
        """Behind each run but the last: what has been computed so far and is read later."""
        readers: dict[Tensor, int] = {}
        for number, run in enumerate(self.runs):
            readers.update((tensor, number) for op in run for tensor in op.inputs)
        found: list[list[Tensor]] = []
        so_far: list[Tensor] = []
        for number, run in enumerate(self.runs[:-1]):
            so_far += [tensor for op in run for tensor in op.outputs]
            found.append([tensor for tensor in so_far if readers.get(tensor, -1) > number])
        return found


def pipeline_of(problem: Problem, strategy: Mapping[str, ParallelConfig]) -> Pipeline | str | None:
    """The pipeline that a strategy is.

    Returns
    -------
    Pipeline, str or None
        None if there is one stage. If stages make no pipeline, why not.
    """
    graph, operators = problem.graph, trained(problem.graph)
    numbers = problem.devices.number
    places = {op: [numbers(name) for name in strategy[op.name].devices] for op in operators}
    sets = device_sets([frozenset(its) for its in places.values()])
    if len(sets) < 2:
        return None
    order: dict[frozenset[int], int] = {}
    for op in operators:
        its = next(its for its in sets if places[op][0] in its)
        order.setdefault(its, len(order))
    stage_of = [next(n for its, n in order.items() if places[op][0] in its) for op in operators]
    stages = tuple(tuple(sorted(its)) for its in order)
    if len({len(its) for its in stages}) > 1:
        return "stages have unequally many devices"
    if sum(map(len, stages)) != len(problem.devices):
        return "some devices are in no stage"
    runs = [run.operators for run in runs_of(operators, stage_of)]
    if [stage_of[operators.index(run[0])] for run in runs] != [
        number % len(stages) for number in range(len(runs))
    ] or len(runs) % len(stages):
        return "operators do not pass the stages in a row, from the first to the last one"
    last = set(runs[-1])
    if any(op not in last for op in losses_of(graph).values()):
        return "a loss is not on the last stage"
    count = graph.micro_batches
    schedule = _schedule(runs, len(stages), count, strategy)
    if schedule is None:
        return f"{count} micro-batches do not go round {len(stages)} stages in equal groups"
    return Pipeline(stages, tuple(runs), count, schedule)


def _schedule(
    runs: Sequence[Sequence[Operator]],
    stages: int,
    count: int,
    strategy: Mapping[str, ParallelConfig],
) -> str | None:
    """Which of PyTorch's schedules does what a strategy's buffers say, or comes near to it."""
    if len(runs) > stages:
        return "ScheduleInterleaved1F1B" if count % group_size(stages, count) == 0 else None
    all_at_once = all(strategy[op.name].buffers >= count for run in runs[:-1] for op in run)
    last = all(strategy[op.name].buffers >= count for op in runs[-1])
    return "ScheduleGPipe" if count < stages or (all_at_once and last) else "Schedule1F1B"
