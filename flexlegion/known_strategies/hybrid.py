"""Data, tensor and pipeline parallelism together, as Megatron-LM trains its largest models.

All ways to write the number of devices as a product of three are simulated (Narayanan et al. 2021,
"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 3).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from flexlegion.base.errors import DoesNotApply, UserError
from flexlegion.graph.graph import Graph, Operator
from flexlegion.known_strategies.basic import data_parallel
from flexlegion.known_strategies.megatron import megatron
from flexlegion.known_strategies.pipeline import registers, runs_of_layers
from flexlegion.known_strategies.registry import own_strategy
from flexlegion.machine.devices import Devices
from flexlegion.sim.fitting import fitting
from flexlegion.sim.problem import MAX_TIME_NS, Degrees, Problem
from flexlegion.sim.simulator import LARGE, judge
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.strategy import ResolvedStrategy, Strategy

# How many of the fastest are simulated, if that takes seconds, and how much slower than the fastest
# they may be sketched.
SIMULATED, NEARLY = 3, 1.1


@own_strategy("3d", needs_costs=True)
def three_d(problem: Problem) -> Strategy:
    """The fastest of all data x tensor x pipeline that fits into memory, as simulated.

    Where one does not fit, it is tried with recomputation or sharded weights, and with both. The
    fastest are tried with more runs of layers a device, and with twice the registers, and so on
    while that pays. All are sketched (`DETAILS`), side by side on all cores, and those that come
    first are simulated, if that takes seconds.

    Raises
    ------
    UserError
        If a batch goes through in one piece: then there is no pipeline.
    """
    graph = problem.graph
    if graph.micro_batches == 1:
        raise DoesNotApply(
            "strategy '3d' has micro-batches go from stage to stage, but a batch goes through in "
            "one piece (see --micro-batches)"
        )
    found = _tried(problem, _divisions(problem.devices, graph.micro_batches), [])
    if not found:
        raise DoesNotApply("strategy '3d' finds no way to divide this model and batch")
    tried: set[_Division] = set()
    while new := sorted(_more(found, graph.micro_batches) - tried):
        tried.update(new)
        found = _tried(problem, new, found)
    best = found[0]
    first = [its for its in found if its.tasks < LARGE]
    if not best.fits or best not in first:
        return best.strategy
    times = [(judge(problem, its.strategy).time_ns, its) for its in first[:SIMULATED]]
    return min(times, key=lambda its: its[0] or MAX_TIME_NS)[1].strategy


class _Division(NamedTuple):
    # As `stages` takes them.
    tensor: int
    pipeline: int
    runs: int = 1
    spare: int = 1

    def bubble(self, rounds: int) -> float:
        """By how much the iteration is longer as stages wait for the first and last micro-batch."""
        return 1 + (self.pipeline - 1) / (self.runs * rounds)


class _Found(NamedTuple):
    # What fits comes first, then what can be simulated, and the fastest of that; of what does not
    # fit, the smallest.
    key: tuple[bool, bool, int]
    strategy: ResolvedStrategy
    division: _Division
    tasks: int  # if each transfer is looked at

    @property
    def fits(self) -> bool:
        return not self.key[0]

    def least_ns(self, rounds: int) -> float:
        """What it would take with any number of runs of layers."""
        return self.key[2] / self.division.bubble(rounds)


def _more(found: Sequence[_Found], rounds: int) -> set[_Division]:
    """More registers and runs of what comes first; and runs of what would come first with them."""
    fit = [its for its in found if its.fits]
    promising = sorted(
        (its for its in fit if its.least_ns(rounds) < fit[0].key[2]),
        key=lambda its: its.least_ns(rounds),
    )
    first = [its.division for its in fit[:SIMULATED]]
    more = [division._replace(spare=2 * division.spare) for division in first]
    for division in (*first, *(its.division for its in promising[:SIMULATED])):
        more.append(division._replace(runs=division.runs + 1))
    return {division for division in more if division.pipeline > 1}


def _tried(
    problem: Problem, divisions: Sequence[_Division], found: Sequence[_Found]
) -> list[_Found]:
    """What was found, and those of the divisions that can be; the best first.

    What is slower than the best by more than `NEARLY` and its bubble is left out. That is decided
    at the end again, so that the result does not depend on who is done first.
    """
    strategies = []
    for division in divisions:
        try:
            configs = stages(problem.graph, problem.devices, *division, time=problem.task_time)
            strategies.append((division, problem.checked(Strategy(configs, "strategy '3d'"))))
        except UserError:
            pass  # it has no pairs of layers to split, too few layers, or too small a batch
    every = list(found)

    def limit_ns(division: _Division) -> int:
        # As sketches are not exact, what is a bit slower counts, too; and beside what cannot be
        # simulated, whatever can be. More runs of layers can make up for a bubble.
        unfit, large, fastest_ns = min((its.key for its in every), default=(True, True, 0))
        longest_ns = NEARLY * division.bubble(problem.graph.micro_batches) * fastest_ns
        return 0 if unfit or large else round(longest_ns)

    def attempt(division: _Division, strategy: ResolvedStrategy) -> None:
        limit = limit_ns(division)
        its = fitting(problem, strategy, limit, simulable=limit > 0)
        large = not its.judged.can_be_simulated
        if its.judged.time_ns is not None:
            key = (False, large, its.judged.time_ns)
        elif limit == 0 and not its.judged.fits:
            key = (True, large, its.judged.missing_bytes)
        else:
            return
        every.append(_Found(key, its.strategy, division, its.judged.all_tasks))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(attempt, *its) for its in strategies]
        try:
            for job in jobs:
                job.result()
        except BaseException:  # Ctrl-C waits for those that have begun, not for all
            pool.shutdown(wait=False, cancel_futures=True)
            raise

    def counts(its: _Found) -> bool:
        late_ns = limit_ns(its.division)
        return not its.fits or late_ns == 0 or its.key[2] <= late_ns

    kept = [its for its in every if counts(its)]
    return sorted(kept, key=lambda its: (its.key, its.division))


def _divisions(devices: Devices, rounds: int) -> list[_Division]:
    """All by devices that share a layer, which are of one node, and stages.

    Those come first that leave the fewest devices to split samples: their task graphs are the
    smallest, and what is then found to be slower than the fastest so far costs little.
    """
    count = len(devices.preferred)
    node = min(map(len, devices.preferred_by_node))
    every = [
        _Division(tensor, pipeline)
        for tensor in range(1, node + 1)
        if node % tensor == 0 and count % tensor == 0
        for pipeline in range(1, min(count // tensor, rounds) + 1)
        if count // tensor % pipeline == 0
    ]
    return sorted(every, key=lambda its: (-its.tensor * its.pipeline, -its.tensor))


def stages(
    graph: Graph,
    devices: Devices,
    tensor: int,
    pipeline: int,
    runs: int = 1,
    spare: int = 1,
    time: Callable[[Operator, Degrees], int] | None = None,
) -> dict[str, ParallelConfig]:
    """A pipeline of so many stages, in each of which layers are shared by so many devices.

    What is left of a stage's devices splits samples.

    Parameters
    ----------
    graph, devices
        What it is for.
    tensor
        Devices that share a layer.
    pipeline
        Stages, of equal work.
    runs
        Of layers, on each device: how often micro-batches go round the stages.
    spare
        So many times the registers that are enough where transfers take no time. With twice as
        many, a stage has micro-batches to go on with while others are on their way.
    time
        Of a task, forward and backward, of an operator that is split in some way, by which stages
        are equal; None: they are by operations.

    Raises
    ------
    UserError
        If the model has no layers that can be shared so, or too few for so many runs.
    """
    names = [name for node in devices.preferred_by_node for name in node]
    size = len(names) // pipeline
    # Of the first stage; others are the same on other devices. Those that share a layer count as a
    # node.
    group = Devices(names[:size], [number // tensor for number in range(size)])
    first = megatron(graph, group) if tensor > 1 else data_parallel(graph, group)
    work = None if time is None else [time(op, first[op.name].degrees) for op in graph.operators]
    numbers = runs_of_layers(graph, pipeline, runs, work)
    place = {name: number for number, name in enumerate(names)}
    last = max(numbers, default=0)
    deep = min(last + 1, pipeline)

    @cache
    def placed(devices: tuple[str, ...], stage: int) -> tuple[str, ...]:
        return tuple(names[stage * size + place[device]] for device in devices)

    def of_stage(config: ParallelConfig, number: int) -> ParallelConfig:
        devices = placed(config.devices, number % pipeline)
        buffers = registers(deep, runs, number, graph.micro_batches)
        if number < last:  # who goes backward at once waits for nobody
            buffers = min(spare * buffers, graph.micro_batches)
        return replace(config, devices=devices, buffers=buffers)

    return {
        op.name: of_stage(first[op.name], number)
        for op, number in zip(graph.operators, numbers, strict=True)
    }
