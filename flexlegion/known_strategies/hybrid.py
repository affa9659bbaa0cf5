"""Data, tensor and pipeline parallelism together, as Megatron-LM trains its largest models.

All ways to write the number of devices as a product of three are simulated (Narayanan et al. 2021,
"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flexlegion.base.errors import DoesNotApply, UserError
from flexlegion.graph.graph import Graph
from flexlegion.known_strategies.basic import data_parallel
from flexlegion.known_strategies.megatron import megatron
from flexlegion.known_strategies.pipeline import cut, work_of
from flexlegion.known_strategies.registry import own_strategy
from flexlegion.machine.devices import Devices
from flexlegion.sim.fitting import fitting
from flexlegion.sim.problem import Problem
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.strategy import ResolvedStrategy, Strategy


@own_strategy("3d", needs_costs=True)
def three_d(problem: Problem) -> Strategy:
    """The fastest of all data x tensor x pipeline that fits into memory, as simulated.

    Where one does not fit, it is tried with recomputation or sharded weights, and with both.

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
    found: list[tuple[tuple[bool, int], ResolvedStrategy]] = []
    for tensor, pipeline in _factors(problem.devices, graph.micro_batches):
        try:
            configs = stages(graph, problem.devices, tensor, pipeline)
            strategy = problem.checked(Strategy(configs, "strategy '3d'"))
        except UserError:
            continue  # it has no pairs of layers to split, or too small a batch
        fastest = min((key for key, _ in found), default=(True, 0))
        its = fitting(problem, strategy, 0 if fastest[0] else fastest[1])
        # What fits comes first, and the fastest of that; of what does not, the smallest.
        if its.judged.missing_bytes:
            found.append(((True, its.judged.missing_bytes), its.strategy))
        elif its.judged.time_ns is not None:
            found.append(((False, its.judged.time_ns), its.strategy))
    if not found:
        raise DoesNotApply("strategy '3d' finds no way to divide this model and batch")
    return min(found, key=lambda its: its[0])[1]


def _factors(devices: Devices, rounds: int) -> Iterator[tuple[int, int]]:
    """(tensor, pipeline): devices that share a layer, all of one node, and stages."""
    count = len(devices.preferred)
    node = min(map(len, devices.preferred_by_node))
    for tensor in range(1, node + 1):
        if node % tensor or count % tensor:
            continue
        for pipeline in range(1, min(count // tensor, rounds) + 1):
            if count // tensor % pipeline == 0:
                yield tensor, pipeline


def stages(graph: Graph, devices: Devices, tensor: int, pipeline: int) -> dict[str, ParallelConfig]:
    """A pipeline of so many stages, in each of which layers are shared by so many devices.

    What is left of a stage's devices splits samples. Stage s of p has p - s registers.

    Parameters
    ----------
    graph, devices
        What it is for.
    tensor
        Devices that share a layer.
    pipeline
        Stages, of equal work.

    Raises
    ------
    UserError
        If the model has no layers that can be shared so.
    """
    names = [name for node in devices.preferred_by_node for name in node]
    size = len(names) // pipeline
    numbers = cut([work_of(op) for op in graph.operators], pipeline)
    of_stage = []
    for stage in range(pipeline):
        its = names[stage * size : (stage + 1) * size]
        # Devices that share a layer count as a node.
        group = Devices(its, [number // tensor for number in range(size)])
        of_stage.append(megatron(graph, group) if tensor > 1 else data_parallel(graph, group))
    last = numbers[-1] if numbers else 0
    return {
        op.name: replace(
            of_stage[stage][op.name], buffers=min(graph.micro_batches, last + 1 - stage)
        )
        for op, stage in zip(graph.operators, numbers, strict=True)
    }
