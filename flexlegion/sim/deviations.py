"""In what a strategy differs from data parallelism, and what each difference is worth.

A deviation is a group of operators of one type and shape (unrolled steps, repeated blocks) that a
strategy configures alike, and not as data parallelism does. What it is worth is found by
counterfactual simulation: that group back to data parallelism, all else unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flexlegion.console.text import names
from flexlegion.graph.graph import Operator
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import SIMULATED, Simulation, full
from flexlegion.strategy.configuration import SHARDING, ParallelConfig
from flexlegion.strategy.strategy import ResolvedStrategy

# Called with how many are done, and how many there are.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Deviation:
    """Operators that are configured alike, and not by data parallelism.

    Parameters
    ----------
    operators
        Of one type and shape.
    config
        What they have.
    usual
        What data parallelism would give them.
    saved_ns
        By how much the iteration would be longer with `usual`; negative: shorter. None: the
        strategy would not fit into memory.
    saved_bytes
        How many bytes more would be moved with `usual`.
    """

    operators: tuple[Operator, ...]
    config: ParallelConfig
    usual: ParallelConfig
    saved_ns: int | None
    saved_bytes: int | None


def deviations(
    problem: Problem,
    strategy: ResolvedStrategy,
    usual: ResolvedStrategy,
    progress: Progress | None = None,
) -> list[Deviation]:
    """All deviations, those that save most first.

    Parameters
    ----------
    problem
        Graph, machine and costs.
    strategy
        What to explain; it fits into memory.
    usual
        What to compare it with: data parallelism.
    progress
        Called after each counterfactual simulation.
    """
    groups: dict[tuple[object, ...], list[Operator]] = {}
    for operator in problem.facts.trained:
        config = strategy[operator.name]
        if config != usual[operator.name]:
            weights = tuple(weight.shape for weight in operator.weights)
            shapes = (*operator.input_shapes, operator.output.shape)
            key = (operator.kind.type, weights, shapes, config)
            groups.setdefault(key, []).append(operator)
    simulation = Simulation(problem, strategy)
    before = simulation.timeline()
    found = []
    for done, operators in enumerate(groups.values()):
        config = strategy[operators[0].name]
        back = {operator.name: usual[operator.name] for operator in operators}
        after = None
        if config.order != usual[operators[0].name].order:
            other = full(problem, strategy.changed(back))
            after = other if other.fits else None
        elif simulation.propose(back, "delta") == SIMULATED:
            after = simulation.timeline()
        simulation.reject()
        saved: tuple[int | None, int | None] = (None, None)
        if after is not None:
            saved = (
                after.iteration_time_ns - before.iteration_time_ns,
                after.bytes_moved - before.bytes_moved,
            )
        found.append(Deviation(tuple(operators), config, usual[operators[0].name], *saved))
        if progress is not None:
            progress(done + 1, len(groups))
    return sorted(found, key=lambda d: (d.saved_ns is not None, -(d.saved_ns or 0)))


def configuration(operator: Operator, config: ParallelConfig) -> str:
    """For people: ``sample 4 x channel 2 on gpu:0 to gpu:7, hierarchical``."""
    parts = [
        f"{dim.name} {degree}"
        for dim, degree in zip(operator.dims, config.degrees, strict=True)
        if degree > 1
    ]
    sums = ", hierarchical" if config.hierarchical else ""
    buffers = f", {config.buffers} buffers" if config.buffers > 1 else ""
    again = ", again" if config.again else ""
    sharded = "" if config.sharding == SHARDING[0] else f", {config.sharding} sharded"
    where = f"{' x '.join(parts) or 'whole'} on {names(config.devices)}"
    return f"{where}{sums}{buffers}{again}{sharded}"
