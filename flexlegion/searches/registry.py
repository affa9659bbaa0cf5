"""All searches that have a name: those that come along, and those that users register."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from flexlegion.base.arguments import typed
from flexlegion.base.errors import UserError
from flexlegion.base.registry import Registry
from flexlegion.base.users_code import line_of
from flexlegion.searches.mcmc import Progress
from flexlegion.searches.mcmc import search as run_chains
from flexlegion.searches.options import PAPER, Budget, SearchOptions
from flexlegion.searches.placement import placement_only
from flexlegion.searches.result import SearchResult
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.strategy import ResolvedStrategy, Strategy


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
        How many to run side by side; None: one a core, or two if the budget has no seconds.
    options
        Of the annealing.
    progress
        Called now and then with the share of the budget that is used up, the best time in ns (-1:
        nothing fits into memory yet), and if it is wanted, what is being done.
    """

    problem: Problem
    starts: Mapping[str, ResolvedStrategy]
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
        resolved = self.problem.checked(strategy)
        timeline = full(self.problem, resolved)
        return timeline.iteration_time_ns if timeline.fits else None


Search = Callable[[SearchTask], SearchResult | Strategy]
Function = TypeVar("Function", bound=Search)

ANNEALING, PAPER_SEARCH, PLACEMENT = "annealing", "paper", "placement"


# Starts for networks of a kind, or many devices, taken where they are faster than data
# parallelism.
SPECIAL = (
    "optcnn-coarse",
    "megatron",
    "pipeline",
    "interleaved",
    "3d",
    "vocabulary",
    "wide-deep",
)


@dataclass(frozen=True)
class NamedSearch:
    """How a search is made.

    Parameters
    ----------
    run
        From what it is to do to what it found.
    starts
        Names of the strategies that it starts from unless others are asked for.
    chooses
        Whether it is told where to start, which dimensions to split, and in what space.
    own
        Whether it is flexlegion's own.
    """

    run: Search
    starts: tuple[str, ...] = ("data", "expert", "optcnn", "random", *SPECIAL)
    chooses: bool = True
    own: bool = False


SEARCHES: Registry[NamedSearch] = Registry("search")


@typed
def register_search(name: str) -> Callable[[Function], Function]:
    """Give a search of your own a name, for ``--search`` and `flexlegion.search`.

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
        SEARCHES.add(name, NamedSearch(function))
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
    search = SEARCHES[name]
    try:
        result = search.run(task)
    except UserError as e:
        if search.own:
            raise
        raise UserError(f"search '{name}': {e}{line_of(e)}") from e
    if isinstance(result, SearchResult):
        return result
    if not isinstance(result, Strategy):
        raise UserError(
            f"search '{name}': its function returns a {type(result).__name__}, but has to return "
            "a Strategy"
        )
    found = task.problem.checked(result)
    time_ns = task.time_ns(found)
    if time_ns is None:
        raise UserError(f"search '{name}': what it found does not fit into the machine's memories")
    return SearchResult(
        found,
        time_ns,
        name,
        {name: (found, time_ns)},
        {start: task.time_ns(strategy) for start, strategy in task.starts.items()},
        {},
        time.monotonic() - begin,
        local_optimum=False,
        interrupted=False,
    )


def _annealing(task: SearchTask) -> SearchResult:
    return _by_chains(task, task.options, task.chains)


def _paper(task: SearchTask) -> SearchResult:
    """FlexFlow's section 6, see `PAPER`; one chain from each start unless more are asked for."""
    if task.options is not None:
        raise UserError(
            f"the search '{PAPER_SEARCH}' is the paper's own and has no options; give them to "
            f"'{ANNEALING}'"
        )
    return _by_chains(task, PAPER, task.chains or 1)


def _by_chains(task: SearchTask, options: SearchOptions | None, chains: int | None) -> SearchResult:
    its = task.problem, task.starts, task.budget, task.seed
    return run_chains(*its, chains, options, progress=task.progress)


def _placement(task: SearchTask) -> SearchResult:
    """Whole operators on devices, the space of REINFORCE (FlexFlow, section 8.2.3)."""
    return placement_only(
        task.problem, task.budget, task.seed, task.chains, task.progress, task.options
    )


SEARCHES.add(ANNEALING, NamedSearch(_annealing, own=True), own=True)
SEARCHES.add(PAPER_SEARCH, NamedSearch(_paper, ("data", "expert", "random"), own=True), own=True)
SEARCHES.add(PLACEMENT, NamedSearch(_placement, chooses=False, own=True), own=True)
