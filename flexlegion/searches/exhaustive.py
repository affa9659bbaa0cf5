"""The optimum of a small search, by branch and bound (FlexFlow, section 8.4).

The search space is that of the chains on at most eight devices: every operator that training
executes is split in any of the ways of `flexlegion.strategy.configuration.splits`, over any set of
devices, in ascending order. Only in one thing it is smaller: weights' gradients are not summed
inside nodes first (`ParallelConfig.hierarchical`), which on machines of several nodes can be
faster. The native part (``native/search/exhaustive.h``) says what the bounds are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from flexlegion.base.errors import UserError
from flexlegion.searches.chain import Chain, prepare_candidates
from flexlegion.sim.problem import Problem
from flexlegion.strategy.strategy import ResolvedStrategy

# Native code runs for so many seconds before it can be interrupted.
SLICE_SECONDS = 0.5
NO_TIME = 1e-9
# With more, the chains do not propose all sets of devices either.
MAX_DEVICES = 8


@dataclass(frozen=True)
class ExhaustiveResult:
    """What an exhaustive search found.

    Parameters
    ----------
    strategy
        The fastest that fits into memory.
    iteration_time_ns
        Its simulated time.
    complete
        Whether it is the optimum: no strategy of the search space is faster.
    root_bound_ns
        What any strategy of the search space takes at least, as known before the search.
    nodes
        How many strategies were bounded, partial ones included.
    simulated
        How many strategies were simulated.
    seconds
        What the search took.
    """

    strategy: ResolvedStrategy
    iteration_time_ns: int
    complete: bool
    root_bound_ns: int
    nodes: int
    simulated: int
    seconds: float


def exhaustive(
    problem: Problem,
    incumbent: ResolvedStrategy,
    seconds: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExhaustiveResult:
    """The minimum simulated iteration time over all strategies of the search space.

    Parameters
    ----------
    problem
        Graph, machine (at most eight devices) and costs. All splits in its cost table that fit the
        machine are candidates; those of the chains are added.
    incumbent
        A good strategy, such as `search` finds: whatever cannot be faster is left out unseen.
    seconds
        When to give up; None: never.
    progress
        Called now and then with the nodes so far and the best time in ns.

    Raises
    ------
    UserError
        If the machine has more devices, or a batch goes in micro-batches.
    """
    begin = time.monotonic()
    if len(problem.devices) > MAX_DEVICES:
        raise UserError(
            f"an exhaustive search takes at most {MAX_DEVICES} devices, but the machine has "
            f"{len(problem.devices)}"
        )
    if problem.graph.micro_batches > 1:
        raise UserError(
            "an exhaustive search takes a batch in one piece: its bounds do not know micro-batches"
        )
    prepare_candidates(problem)
    chain = Chain(problem, incumbent, seed=0)
    while True:
        left = SLICE_SECONDS
        if seconds is not None:
            left = min(left, begin + seconds - time.monotonic())
        # With less than no time left it returns at once; 0 would set no limit.
        branches = chain.exhaust(max(left, NO_TIME))
        if branches.complete or left <= 0:
            break
        if progress is not None:
            progress(branches.nodes, chain.state.best_time)
    return ExhaustiveResult(
        chain.best.with_origin("optimum", {}),
        chain.state.best_time,
        branches.complete,
        branches.root_bound,
        branches.nodes,
        branches.simulated,
        time.monotonic() - begin,
    )
