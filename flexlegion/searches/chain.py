"""One chain of strategies, a thin view of the native one (``native/search/chain.h``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from flexlegion.bindings.native import Arrays
from flexlegion.graph.graph import Operator
from flexlegion.sim.problem import Degrees, Problem
from flexlegion.sim.simulator import DETAILS
from flexlegion.strategy.strategy import ResolvedStrategy

SplitsOf = Callable[[Operator], list[Degrees]]


def switch(without: str) -> Any:
    """An option that is on; `without` says, for help, what a search does without it."""
    return field(default=True, metadata={"without": without})


@dataclass(frozen=True)
class ChainOptions:
    """How a chain moves; what speeds it up can be left out, so that its worth can be measured.

    Parameters
    ----------
    temperature
        1 / beta of equation 2, as a share of `scale_ns`: a strategy slower by that much is
        accepted with probability 1/e.
    scale_ns
        Nanoseconds; 0: the current iteration time.
    tied
        Operators of one group change together.
    critical
        Half of the proposals change an operator on the critical path.
    neighbours
        Some proposals take over a neighbour's configuration.
    uniform
        Instead of these, an operator at random gets one of its configurations, each as likely as
        the others (FlexFlow, section 6.2): of up to eight devices, every degree of every dimension
        on every set of devices; of more, on blocks and strides of devices.
    early_rejection
        Reject by lower bounds where they suffice; the chain is the same without.
    algorithm
        ``delta`` or ``full``; the chain is the same.
    """

    temperature: float = 0.01
    scale_ns: int = 0
    tied: bool = False
    critical: bool = switch("do not prefer operators on the critical path")
    neighbours: bool = switch("do not propose neighbours' configurations")
    uniform: bool = False
    early_rejection: bool = switch("simulate every proposal to its end (same result, slower)")
    algorithm: str = "delta"


@dataclass(frozen=True)
class ChainState:
    """Where a chain is, and what its proposals came to.

    Parameters
    ----------
    best_time, current_time
        Iteration times in ns; `best_time` is -1 while nothing has fitted into memory.
    proposals
        How many there were. Of these:
    accepted
        became the current strategy,
    unchanged
        proposed what was there,
    overloaded
        were rejected by the load of a device or link alone,
    overlong
        were rejected by a chain of dependencies alone,
    stopped
        were rejected in the middle of the simulation,
    out_of_memory
        did not fit,
    too_fine
        had too many tasks to be worth a look,
    simulated
        were simulated to the end.
    improved
        How often the best strategy changed.
    tasks_played
        Tasks that all simulations went through.
    """

    best_time: int
    current_time: int
    proposals: int
    accepted: int
    unchanged: int
    overloaded: int
    overlong: int
    stopped: int
    out_of_memory: int
    too_fine: int
    simulated: int
    improved: int
    tasks_played: int

    def ended(self) -> ChainState:
        """Of a chain that is left: without times, which the best found so far has."""
        return replace(self, best_time=-1, current_time=-1)


@dataclass(frozen=True)
class Branches:
    """How far branch and bound came.

    Parameters
    ----------
    complete
        Whether the chain's best strategy is the optimum.
    root_bound
        What any strategy takes at least, as known before the search (ns).
    nodes
        How many strategies were bounded, partial ones included.
    simulated
        How many strategies were simulated.
    """

    complete: bool
    root_bound: int
    nodes: int
    simulated: int


def prepare_candidates(
    problem: Problem, splits_of: SplitsOf | None = None, parts: bool = False
) -> int:
    """Fill the cost table with every split that the search may propose; returns how many.

    Parameters
    ----------
    problem
        A chain proposes all that its cost table holds, so for fewer splits it has to be new.
    splits_of
        From an operator to its splits; by default the problem's.
    parts
        Whether partial values may stay apart, too, as a chain proposes it where there are some.
    """
    if splits_of is None:
        splits_of = problem.splits_and_parts if parts else problem.splits
    count = 0
    for number, operator in enumerate(problem.graph.operators):
        if problem.class_of(operator) != number:
            continue
        every = splits_of(operator)
        problem.prepare(operator, *every)
        count += len(every)
    return count


class Chain:
    """A chain; different chains may run in different threads.

    Parameters
    ----------
    problem
        With its candidates prepared; its cost table must not change while chains live.
    start
        Where to begin.
    seed
        Decides all that follows.
    groups
        A number for each operator; equal ones may be tied. None: each its own.
    detail
        How it judges strategies, one of `DETAILS`; all its times are of that kind.
    """

    def __init__(
        self,
        problem: Problem,
        start: ResolvedStrategy,
        seed: int,
        groups: Sequence[int] | None = None,
        detail: str = "transfers",
    ) -> None:
        self.problem = problem
        self._core = problem.core
        problem.price(start)
        numbers = list(groups) if groups is not None else list(range(len(problem.graph.operators)))
        array, state = Arrays(), self._core.ffi.new("fl_chain_state **")
        self._handle = self._core.ffi.gc(
            self._core.check(
                self._core.lib.fl_chain_create(
                    problem.handle,
                    len(numbers),
                    numbers,
                    seed,
                    problem.to_native(array, start),
                    DETAILS.index(detail),
                    state,
                )
            ),
            self._core.lib.fl_chain_destroy,
        )
        self._state = state[0]

    def run(self, proposals: int, seconds: float, options: ChainOptions) -> None:
        """Make at most that many proposals, for at most that long (0: however long it takes)."""
        lib, ffi = self._core.lib, self._core.ffi
        native = ffi.new(
            "fl_chain_options *",
            {
                "temperature": options.temperature,
                "scale": options.scale_ns,
                "tied": options.tied,
                "critical": options.critical,
                "neighbours": options.neighbours,
                "uniform": options.uniform,
                "early_rejection": options.early_rejection,
                "algorithm": lib.FL_FULL if options.algorithm == "full" else lib.FL_DELTA,
            },
        )
        self._core.check(lib.fl_chain_run(self._handle, proposals, seconds, native))

    def descend(self, seconds: float, tied: bool = False, part: int = 0, parts: int = 1) -> bool:
        """Descend from the best strategy until no single change improves it.

        Parameters
        ----------
        seconds
            At most that many (0: however long it takes); the next call goes on from there.
        tied
            Operators of one group change together.
        part, parts
            Change every `parts`-th operator, from the one numbered `part` on.

        Returns
        -------
        bool
            Whether it got there in that time.
        """
        lib = self._core.lib
        return bool(
            self._core.check(lib.fl_chain_descend(self._handle, seconds, tied, part, parts))
        )

    def exhaust(self, seconds: float) -> Branches:
        """Look for the optimum of all that the chain can propose, from its best strategy on.

        Parameters
        ----------
        seconds
            At most that many (0: however long it takes); the next call goes on from there.
        """
        branches = self._core.ffi.new("fl_branches *")
        exhaust = self._core.lib.fl_chain_exhaust
        complete = bool(self._core.check(exhaust(self._handle, seconds, branches)))
        return Branches(complete, branches.root_bound, branches.nodes, branches.simulated)

    def adopt(self, strategy: ResolvedStrategy) -> None:
        """Continue from another strategy; its degrees have to be in the cost table."""
        array = Arrays()
        native = self.problem.to_native(array, strategy)
        self._core.check(self._core.lib.fl_chain_adopt(self._handle, native))

    @property
    def state(self) -> ChainState:
        """Times and counts."""
        return ChainState(*(int(getattr(self._state, each.name)) for each in fields(ChainState)))

    @property
    def best(self) -> ResolvedStrategy:
        """The fastest strategy so far that fits into memory (the start, while none has)."""
        return self.problem.from_native(self._state.best, "strategy found")
