"""Device placement without splitting, the space of ColocRL (FlexFlow, section 8.2.3).

Mirhoseini et al. 2017 (Device Placement Optimization with Reinforcement Learning) place whole
operators on devices: parallelism comes from different operators alone. The chains of `search`
look for the best such placement, so that what splitting adds can be told from how well a search
searches.
"""

from __future__ import annotations

from flexlegion.graph.graph import Operator
from flexlegion.searches.mcmc import Progress, search
from flexlegion.searches.options import Budget, SearchOptions
from flexlegion.searches.result import SearchResult
from flexlegion.sim.problem import Degrees, Problem
from flexlegion.strategy.whole import model_parallel, single

STARTS = {"single": single, "model": model_parallel}


def placement_only(
    problem: Problem,
    budget: Budget,
    seed: int = 0,
    chains: int | None = None,
    progress: Progress | None = None,
    options: SearchOptions | None = None,
) -> SearchResult:
    """Search for a fast strategy in which every operator is one task.

    Parameters
    ----------
    problem
        Graph, machine and costs; its cost table stays as it is.
    budget
        When to stop.
    seed, chains, progress, options
        See `search`.

    Raises
    ------
    UserError
        If nothing fits into the machine's memories.
    """
    # A search proposes all that the cost table holds, so there has to be another.
    whole = Problem(
        problem.graph,
        problem.topology,
        problem.costs,
        problem.outputs,
        problem.optimizer_states,
        problem.clips,
        problem.granularity,
        problem.dimensions,
        lazy=problem.lazy,
    )
    starts = {
        name: make(whole.graph, whole.devices).checked(whole.graph, whole.devices)
        for name, make in STARTS.items()
    }
    return search(whole, starts, budget, seed, chains, options, progress, splits_of=_unsplit)


def _unsplit(operator: Operator) -> list[Degrees]:
    return [(1,) * len(operator.dims)]
