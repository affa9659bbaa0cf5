"""All searches that have a name: those that come along, and those that users register."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from flexlegion.errors import UserError
from flexlegion.problem import Problem
from flexlegion.registry import Registry
from flexlegion.searches.mcmc import Budget, Progress, SearchOptions, SearchResult
from flexlegion.searches.mcmc import search as chains
from flexlegion.searches.placement import placement_only
from flexlegion.simulator import full
from flexlegion.strategy import Strategy


@dataclass(frozen=True)
class SearchTask:
    """What a search is to do.

    Parameters
    ----------
    problem
        Graph, machine and costs.
    starts
        Known strategies by name, to start from.
    budget
        When to stop.
    seed
        Decides all that is random.
    chains
        How many to run side by side; None: one a core.
    options
        Of searches by Markov chains.
    progress
        Called now and then with the share of the budget that is used up, and the best time in ns.
    """

    problem: Problem
    starts: Mapping[str, Strategy]
    budget: Budget
    seed: int = 0
    chains: int | None = None
    options: SearchOptions | None = None
    progress: Progress | None = None

    def time_ns(self, strategy: Strategy) -> int | None:
        """A strategy's simulated iteration; None: it does not fit into memory.

        Raises
        ------
        UserError
            If it does not fit graph or machine.
        """
        timeline = full(self.problem, strategy)
        try:
            self.problem.require_memory(strategy, timeline.allocated_bytes)
        except UserError:
            return None
        return timeline.iteration_time_ns


Search = Callable[[SearchTask], SearchResult | Strategy]
Function = TypeVar("Function", bound=Search)

SEARCHES: Registry[Search] = Registry("search")


def register_search(name: str) -> Callable[[Function], Function]:
    """Give a search of your own a name, for ``--method`` and `flexlegion.search`.

    Parameters
    ----------
    name
        Lower-case letters, digits, ``-`` and ``_``.

    Returns
    -------
    callable
        A decorator of a function that takes a `SearchTask` and returns the `Strategy` it found.

    Raises
    ------
    UserError
        If it is no such name, or one of flexlegion's own.

    Examples
    --------
    >>> @register_search("best-start")
    ... def best_start(task):
    ...     return min(task.starts.values(), key=lambda start: task.time_ns(start) or 10**18)
    """

    def register(function: Function) -> Function:
        SEARCHES.add(name, function)
        return function

    return register


def run_search(name: str, task: SearchTask) -> SearchResult:
    """Search by the method of that name.

    Raises
    ------
    UserError
        If there is no such search, nothing can fit, or nothing that it found fits.
    """
    begin = time.monotonic()
    task.problem.require_room()
    result = SEARCHES[name](task)
    if isinstance(result, SearchResult):
        return result
    if not isinstance(result, Strategy):
        raise UserError(
            f"search '{name}': its function returns a {type(result).__name__}, but has to return "
            "a Strategy"
        )
    time_ns = task.time_ns(result)
    if time_ns is None:
        raise UserError(f"search '{name}': what it found does not fit into the machine's memories")
    return SearchResult(
        result,
        time_ns,
        name,
        {name: (result, time_ns)},
        {start: task.time_ns(strategy) for start, strategy in task.starts.items()},
        {},
        time.monotonic() - begin,
        local_optimum=False,
        interrupted=False,
    )


def _chains(task: SearchTask) -> SearchResult:
    return chains(
        task.problem,
        task.starts,
        task.budget,
        task.seed,
        task.chains,
        task.options,
        progress=task.progress,
    )


def _placement(task: SearchTask) -> SearchResult:
    """Whole operators on devices, the space of REINFORCE (FlexFlow, section 8.2.3)."""
    return placement_only(
        task.problem, task.budget, task.seed, task.chains, task.progress, task.options
    )


SEARCHES.add("chains", _chains, own=True)
SEARCHES.add("placement", _placement, own=True)
