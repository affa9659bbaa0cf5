"""In what a strategy differs from data parallelism, and what each difference is worth.

A deviation is a group of operators of one type and shape (unrolled steps, repeated blocks) that a
strategy configures alike, and not as data parallelism does. What it is worth is found by
counterfactual simulation: that group back to data parallelism, all else unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flexlegion.console.text import names
from flexlegion.graph.graph import Operator
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import LARGE, NO_MEMORY, SIMULATED, Simulation, full, judge
from flexlegion.strategy.configuration import SHARDING, ParallelConfig
from flexlegion.strategy.strategy import ResolvedStrategy

# Called with how many are done, and how many there are.
Progress = Callable[[int, int], None]
# What the iteration would take longer, in ns, and move more, in bytes, with other configurations;
# or why it has no time then.
Saved = tuple[int | None, int | None, str]
Savings = Callable[[Mapping[str, ParallelConfig]], Saved]


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
        By how much the iteration would be longer with `usual`; negative: shorter. None: it would
        have no time.
    saved_bytes
        How many bytes more would be moved with `usual`; None if `saved_ns` is, or if that is of
        sketches.
    reason
        Why it would have no time, as the end of a sentence (`NO_MEMORY`, `TOO_MANY_TASKS`).
    sketched
        Whether `saved_ns` is the difference of two sketches (``native/sim/sketch.h``), and no more
        than an estimate: an iteration has too many tasks to simulate it for each group.
    """

    operators: tuple[Operator, ...]
    config: ParallelConfig
    usual: ParallelConfig
    saved_ns: int | None
    saved_bytes: int | None
    reason: str = ""
    sketched: bool = False


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
    sketched = judge(problem, strategy, 0, "bundles").all_tasks >= LARGE
    savings = _sketched(problem, strategy) if sketched else _simulated(problem, strategy)
    found = []
    for done, operators in enumerate(groups.values()):
        config, other = strategy[operators[0].name], usual[operators[0].name]
        saved = savings({operator.name: other for operator in operators})
        found.append(Deviation(tuple(operators), config, other, *saved, sketched))
        if progress is not None:
            progress(done + 1, len(groups))
    return sorted(found, key=lambda d: (d.saved_ns is not None, -(d.saved_ns or 0)))


def _simulated(problem: Problem, strategy: ResolvedStrategy) -> Savings:
    """By simulation; what a change leaves as it is is not simulated again."""
    simulation = Simulation(problem, strategy)
    before = simulation.timeline_of(simulation.tasks)

    def savings(back: Mapping[str, ParallelConfig]) -> Saved:
        after = None
        if any(config.order != strategy[name].order for name, config in back.items()):
            other = full(problem, strategy.changed(back))
            after = other if other.fits else None
        elif simulation.propose(back, "delta") == SIMULATED:
            after = simulation.timeline_of(simulation.tasks)
            simulation.reject()
        if after is None:
            return None, None, NO_MEMORY
        longer = after.iteration_time_ns - before.iteration_time_ns
        return longer, after.bytes_moved - before.bytes_moved, ""

    return savings


def _sketched(problem: Problem, strategy: ResolvedStrategy) -> Savings:
    """By sketches, where an iteration has so many tasks that keeping them takes gigabytes."""
    before = judge(problem, strategy, 0, "bundles")

    def savings(back: Mapping[str, ParallelConfig]) -> Saved:
        after = judge(problem, strategy.changed(back), 0, "bundles")
        if after.time_ns is None or before.time_ns is None:
            return None, None, after.reason or before.reason
        return after.time_ns - before.time_ns, None, ""

    return savings


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
