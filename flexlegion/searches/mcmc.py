"""Searches by chains of strategies, from several starts: annealing, and the paper's own.

A chain tries changes in native code; here are the starts, the budget, the phases of a chain, and
several chains on several cores.

By default this is annealing. A chain has three phases: operators of a kind (the unrolled steps of a
layer, repeated blocks) change together; then each operator by itself; at last a descent to a
strategy that no change of a single operator improves. In each of the first two the temperature
falls; proposals prefer what may help, and chains go on from the best of them, without a correction
as Hastings' ratio would be one. So the chains sample no distribution, which a search does not need.

`PAPER` follows FlexFlow's section 6: the Metropolis-Hastings algorithm with symmetric proposals.
An operator, selected at random, gets a random configuration, each of its configurations with the
same probability; beta is constant; a start is left when its share of the budget is used up, or half
of that brought no improvement. It differs from the paper in what a configuration is, and in memory:

- An operator's tasks are on a set of devices, in ascending order: the paper also has every other
  order. Of more than eight devices, sets are blocks and strides alone, for all are too many.
- Besides samples, attributes and parameters, what is summed over can be split, unless a search is
  told otherwise (`dimensions`).
- Nothing in the paper says what is done with strategies that do not fit into memory: here they are
  never accepted, unless the current one does not fit either, and then if they take less.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from flexlegion.base.errors import UserError
from flexlegion.graph.graph import Operator
from flexlegion.searches.chain import (
    Chain,
    ChainOptions,
    ChainState,
    SplitsOf,
    prepare_candidates,
    switch,
)
from flexlegion.searches.descent import best_of, descend, wait
from flexlegion.searches.memory import saves_memory, with_less
from flexlegion.sim.problem import Problem
from flexlegion.strategy.strategy import ResolvedStrategy

# A chain cannot be interrupted within a slice: short enough for Ctrl-C and progress to feel prompt.
SLICE_SECONDS = 0.1
SLICE_PROPOSALS = 64
# Of each start's budget, the shares of the phases; what is left goes to the descent.
TIED_SHARE, UNTIED_SHARE = 0.45, 0.35
# Of the whole budget, where operators are run again or weights sharded: what remains to try less of
# that.
LESS_SHARE = 0.1
# The last of several chains is that much hotter than the first: small problems want the hot ones,
# which leave local optima, large ones the cool ones, which get anywhere in the time.
HOTTEST = 10.0
# After so many slices, chains of one start go on from the best of them.
EXCHANGE_SLICES = 20


@dataclass(frozen=True)
class Budget:
    """When to stop: whichever comes first.

    With `proposals` alone a search is reproducible to the last digit; with `seconds` it gets as far
    as the machine allows.

    Parameters
    ----------
    seconds
        For the whole search; None: no limit.
    proposals
        For each chain from each start; None: no limit.
    """

    seconds: float | None = 60.0
    proposals: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is None and self.proposals is None:
            raise UserError("a search needs a budget: seconds, proposals, or both")
        if self.seconds is not None and not 0 < self.seconds <= 10**7:
            raise UserError(f"a budget has to be 0 to 10^7 seconds, but is {self.seconds}")
        if self.proposals is not None and not 0 < self.proposals <= 10**15:
            raise UserError(f"a budget has to be 1 to 10^15 proposals, but is {self.proposals}")


@dataclass(frozen=True)
class SearchOptions(ChainOptions):
    """How to search: how chains move (`ChainOptions`), and the course of a search.

    What speeds it up can be switched off, so that its worth can be measured.

    Parameters
    ----------
    temperature
        At first, in the coolest chain.
    tied
        A first phase changes operators of a kind together.
    descent
        A last phase descends to a local optimum.
    cooling
        The temperature falls to nothing in the course of each phase; else it stays, and is a share
        of the start's iteration time.
    exchange
        Now and then, chains of one start go on from the best of them, and each is hotter than the
        one before; else they are alike and know nothing of each other.
    """

    temperature: float = 0.005
    tied: bool = switch("do not change operators of a kind together at first")
    descent: bool = switch("do not descend to a local optimum at the end")
    cooling: bool = switch("keep the temperature instead of letting it fall")
    exchange: bool = switch("run several chains of one start by themselves")


# FlexFlow, section 6; beta, a constant that can be chosen, is 200 / the start's iteration time.
PAPER = SearchOptions(
    uniform=True, tied=False, descent=False, cooling=False, exchange=False, temperature=0.005
)


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Parameters
    ----------
    strategy
        The fastest that fits into memory.
    iteration_time_ns
        Its simulated time.
    start
        From which start it came.
    found
        What came of each start that led to something that fits, with its time; the fastest first.
    start_times_ns
        Simulated time of each start; None: it does not fit into memory.
    states
        For each start, the state of each chain at its end.
    seconds
        What the search took.
    local_optimum
        Whether no change of one operator improves the strategy.
    interrupted
        Whether the user ended it early.
    trace
        How it went: proposals made, and the best time until then, at the first strategy that fits,
        at each improvement seen, and at the end.
    ended_by
        What ended it early: `flexlegion.process.ending.Terminated` for SIGTERM, for example.
    """

    strategy: ResolvedStrategy
    iteration_time_ns: int
    start: str
    found: dict[str, tuple[ResolvedStrategy, int]]
    start_times_ns: dict[str, int | None]
    states: dict[str, list[ChainState]]
    seconds: float
    local_optimum: bool
    interrupted: bool
    trace: tuple[tuple[int, int], ...] = ()
    ended_by: KeyboardInterrupt | None = None

    @property
    def proposals(self) -> int:
        """All proposals of all chains."""
        return sum(state.proposals for states in self.states.values() for state in states)


# Called with the share of the budget that is used up, and the best time so far in ns.
Progress = Callable[[float, int], None]


def search(
    problem: Problem,
    starts: Mapping[str, ResolvedStrategy],
    budget: Budget,
    seed: int = 0,
    chains: int | None = None,
    options: SearchOptions | None = None,
    progress: Progress | None = None,
    splits_of: SplitsOf | None = None,
) -> SearchResult:
    """Search for a fast strategy.

    Parameters
    ----------
    problem
        Graph, machine and costs.
    starts
        Initial strategies by name; the budget is shared equally between them. The result is never
        slower than any of them.
    budget
        When to stop. A start is also left when half of its budget brought no improvement.
    seed
        Decides everything random.
    chains
        Chains from each start, each in a thread; by default one a core.
    options
        How to search.
    progress
        Called about ten times a second. A KeyboardInterrupt ends the search with what it has.
    splits_of
        How operators may be split; see `prepare_candidates`.

    Raises
    ------
    UserError
        If nothing fits into the machine's memories.
    """
    options = options or SearchOptions()
    begin = time.monotonic()
    prepare_candidates(problem, splits_of, parts=not options.uniform)
    for strategy in starts.values():
        problem.price(strategy)
    runs: list[_Start] = []
    trace: list[tuple[int, int]] = []

    def note() -> None:
        best_time = min((run.best_time for run in runs if run.best_time >= 0), default=-1)
        if best_time >= 0 and (not trace or best_time < trace[-1][1]):
            trace.append((_proposals(runs), best_time))

    saves = any(map(saves_memory, starts.values()))
    seconds = budget.seconds
    if seconds is not None and saves:
        seconds *= 1 - LESS_SHARE
    share = seconds / len(starts) if seconds is not None else None
    count = chains or os.cpu_count() or 1
    try:
        with ThreadPoolExecutor(count) as pool:
            for index, (name, strategy) in enumerate(starts.items()):
                run = _Start(problem, name, strategy, seed + 1000 * index, count, options)
                runs.append(run)
                report = _report(progress, runs, index, len(starts), note)
                note()
                deadline = begin + share * (index + 1) if share is not None else None
                run.search(pool, deadline, budget.proposals, report)
        ended_by = None
    except KeyboardInterrupt as e:
        ended_by = e
    fitting = [run for run in runs if run.best_time >= 0]
    if not fitting:
        what = "all that training allocates there (simulate shows it beside the peak)"
        if problem.space is not None:
            what = f"what its program for {problem.space.name} keeps there (export shows it)"
        raise UserError(
            f"no strategy was found that fits into the machine's memories, by {what}; take a "
            "smaller batch, or a machine with more devices or larger memories"
        )
    best = min(fitting, key=lambda run: run.best_time)
    trace.append((_proposals(runs), best.best_time))
    found = {
        run.name: (run.best, run.best_time)
        for run in sorted(fitting, key=lambda run: run.best_time)
    }
    if saves and ended_by is None:
        left = None if budget.seconds is None else LESS_SHARE * budget.seconds
        found[best.name] = with_less(problem, best.best, left)
        trace.append((_proposals(runs), found[best.name][1]))
    return SearchResult(
        *found[best.name],
        best.name,
        found,
        {run.name: run.start_time for run in runs},
        {run.name: [chain.state for chain in run.chains] for run in runs},
        time.monotonic() - begin,
        best.local_optimum and found[best.name][1] == best.best_time,
        ended_by is not None,
        tuple(trace),
        ended_by,
    )


def tie_groups(problem: Problem) -> list[int]:
    """A number for each operator; those that play the same part in the network have the same.

    They are of one class (see `Problem.class_of`), read from operators of the same types, and are
    read by operators of the same types. So an attention's output layer, which joins the heads, is
    not tied to the layers of its queries, although it has their shape; but the unrolled steps of a
    recurrent layer are tied, although each reads another word's embedding.
    """
    operators = problem.graph.operators
    read: dict[Operator, set[type]] = {operator: set() for operator in operators}
    written: dict[Operator, set[type]] = {operator: set() for operator in operators}
    for operator in operators:
        for producer in (tensor.producer for tensor in operator.inputs):
            if producer is not None:
                read[operator].add(type(producer.kind))
                written[producer].add(type(operator.kind))
    numbers: dict[object, int] = {}
    return [
        numbers.setdefault((problem.class_of(op), frozenset(read[op]), frozenset(written[op])), i)
        for i, op in enumerate(operators)
    ]


class _Start:
    """The chains from one start."""

    def __init__(
        self,
        problem: Problem,
        name: str,
        strategy: ResolvedStrategy,
        seed: int,
        chains: int,
        options: SearchOptions,
    ) -> None:
        self.name = name
        self.options = options
        groups = tie_groups(problem)
        self.has_ties = options.tied and len(set(groups)) < len(groups)
        self.chains = [Chain(problem, strategy, seed + i, groups) for i in range(chains)]
        first = self.chains[0].state
        self.start_time = first.best_time if first.best_time >= 0 else None
        self.local_optimum = False

    @property
    def best_time(self) -> int:
        """ns; -1: nothing has fitted into memory."""
        times = [chain.state.best_time for chain in self.chains]
        return min((time for time in times if time >= 0), default=-1)

    @property
    def best(self) -> ResolvedStrategy:
        """The fastest strategy of all chains."""
        return best_of(self.chains).best

    def search(
        self,
        pool: ThreadPoolExecutor,
        deadline: float | None,
        proposals: int | None,
        report: Callable[[float], None],
    ) -> None:
        """Run all phases until the deadline, or until so many proposals were made by each chain."""
        clock = _Clock(deadline, proposals, len(self.chains))
        base: ChainOptions = self.options
        if not self.options.cooling:
            base = replace(base, scale_ns=self.chains[0].state.current_time)
        phases = [(True, TIED_SHARE, 1.0)] if self.has_ties else []
        # Single operators matter less than whole layers: their changes are judged by a lower
        # temperature.
        untied = UNTIED_SHARE + (0.0 if self.has_ties else TIED_SHARE)
        phases.append((False, untied, 0.1 if self.has_ties else 1.0))
        if not self.options.descent:
            phases[-1] = (False, 1.0 - sum(share for _, share, _ in phases[:-1]), phases[-1][2])
        used = 0.0
        for tied, share, heat in phases:
            self._phase(pool, clock, used, used + share, replace(base, tied=tied), heat, report)
            used += share
            self._exchange()
        if self.options.descent:
            if self.has_ties:
                self._descend(pool, clock, True, report)
            self.local_optimum = self._descend(pool, clock, False, report)

    def _phase(
        self,
        pool: ThreadPoolExecutor,
        clock: _Clock,
        start: float,
        end: float,
        options: ChainOptions,
        heat: float,
        report: Callable[[float], None],
    ) -> None:
        improved_at, best = start, self.best_time
        slices = 0
        while (now := clock.used(self.chains)) < end:
            done = (now - start) / (end - start)
            cool = max(1e-3, 1.0 - done) if self.options.cooling else 1.0
            its = replace(options, temperature=self.options.temperature * heat * cool)
            self._slice(pool, its, clock)
            slices += 1
            if self.best_time != best:
                best, improved_at = self.best_time, now
            elif now - improved_at > (end - start) / 2:
                break  # half of the budget without an improvement
            if slices % EXCHANGE_SLICES == 0:
                self._exchange()
            report(now)

    def _slice(self, pool: ThreadPoolExecutor, options: ChainOptions, clock: _Clock) -> None:
        seconds = SLICE_SECONDS if clock.deadline is not None else 0.0
        count = SLICE_PROPOSALS if clock.proposals is not None else 10**12
        wait(
            [
                pool.submit(
                    chain.run,
                    count,
                    seconds,
                    replace(options, temperature=options.temperature * self._heat(i)),
                )
                for i, chain in enumerate(self.chains)
            ]
        )

    def _heat(self, chain: int) -> float:
        """Chains from 1 to `HOTTEST` times the temperature, if they exchange what they find."""
        if not self.options.exchange:
            return 1.0
        return math.pow(HOTTEST, chain / max(1, len(self.chains) - 1))

    def _descend(
        self,
        pool: ThreadPoolExecutor,
        clock: _Clock,
        tied: bool,
        report: Callable[[float], None],
    ) -> bool:
        """Whether the best strategy has become a local optimum.

        Without a deadline one chain does all, since then the result must not depend on speed.
        """
        if self.best_time < 0:
            return False  # nothing fits into memory, so there is nothing to descend from
        chains = [best_of(self.chains)] if clock.deadline is None else self.chains
        return descend(chains, pool, clock.deadline, tied, lambda: report(clock.used(self.chains)))

    def _exchange(self) -> None:
        """All chains go on from the best strategy of any."""
        if not self.options.exchange:
            return
        best = best_of(self.chains)
        best_time = best.state.best_time
        if best_time < 0:
            return
        behind = [chain for chain in self.chains if chain.state.current_time != best_time]
        if behind:
            strategy = best.best
            for chain in behind:
                chain.adopt(strategy)


class _Clock:
    """How much of a start's budget is used up, as a share."""

    def __init__(self, deadline: float | None, proposals: int | None, chains: int) -> None:
        self.deadline = deadline
        self.proposals = proposals
        self._chains = chains
        self._begin = time.monotonic()

    def used(self, chains: Sequence[Chain]) -> float:
        """0 to 1, and beyond."""
        shares = [0.0]
        if self.deadline is not None:
            length = max(self.deadline - self._begin, 1e-9)
            shares.append((time.monotonic() - self._begin) / length)
        if self.proposals is not None:
            made = sum(chain.state.proposals for chain in chains)
            shares.append(made / (self.proposals * self._chains))
        return max(shares)


def _proposals(runs: Sequence[_Start]) -> int:
    return sum(chain.state.proposals for run in runs for chain in run.chains)


def _report(
    progress: Progress | None,
    runs: Sequence[_Start],
    index: int,
    starts: int,
    note: Callable[[], None],
) -> Callable[[float], None]:
    def report(share: float) -> None:
        note()
        if progress is not None:
            times = [run.best_time for run in runs if run.best_time >= 0]
            progress((index + min(share, 1.0)) / starts, min(times, default=-1))

    return report
