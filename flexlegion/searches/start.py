"""What a search does from one strategy: several chains, in phases.

On machines where a task graph is mostly hops of transfers, each phase is scouted first: chains that
look at bundles of transfers (`DETAILS`), which costs a fraction, find where to go; what they find
is priced, simulated as it is, and only what is then faster than all before is kept. Chains that
look at each transfer go on from there. So every time that a start tells is exact.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from flexlegion.graph.graph import Operator
from flexlegion.searches.chain import Chain, ChainOptions, ChainState
from flexlegion.searches.descent import best_of, descend, wait
from flexlegion.searches.entry import Entry
from flexlegion.searches.options import SearchOptions
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import price
from flexlegion.strategy.strategy import ResolvedStrategy

# A chain cannot be interrupted within a slice: short enough for Ctrl-C and progress to feel prompt.
SLICE_SECONDS = 0.1
SLICE_PROPOSALS = 64
# Of the budget, the share of the first phase; of the rest, that of the descent.
TIED_SHARE, DESCENT_SHARE = 0.45, 0.36
# The last of several chains is that much hotter than the first: small problems want the hot ones,
# which leave local optima, large ones the cool ones, which get anywhere in the time.
HOTTEST = 10.0
# After so many slices, chains of one start go on from the best of them.
EXCHANGE_SLICES = 20
# A phase of chains that look at each transfer is left out if a strategy could be simulated fewer
# times in it than that, from nothing. Of a scouted one, such a share goes into pricing, at most.
LEAST_SIMULATIONS = 10
PRICING_SHARE = 0.25


def tie_groups(problem: Problem) -> list[int]:
    """A number for each operator; those that play the same part in the network have the same.

    They share weights; or they are of one class (see `Problem.class_of`), read from operators of
    the same types, and are read by operators of the same types. So an attention's output layer,
    which joins the heads, is not tied to the layers of its queries, although it has their shape;
    but the unrolled steps of a recurrent layer are tied: each reads another word's embedding, and
    the first one has no step before it, but all use the layer's weights.
    """
    operators = problem.graph.operators
    read: dict[Operator, set[type]] = {operator: set() for operator in operators}
    written: dict[Operator, set[type]] = {operator: set() for operator in operators}
    for operator in operators:
        for producer in (tensor.producer for tensor in operator.inputs):
            if producer is not None:
                read[operator].add(type(producer.kind))
                written[producer].add(type(operator.kind))
    # The number of a key is that of the first operator that has it, or has the same as that one.
    numbers: dict[object, int] = {}
    same_as = list(range(len(operators)))

    def first(number: int) -> int:
        while same_as[number] != number:
            number = same_as[number]
        return number

    for i, op in enumerate(operators):
        keys: list[object] = [
            (problem.class_of(op), frozenset(read[op]), frozenset(written[op])),
            *((type(op.kind), len(op.dims), weight) for weight in op.weights),
        ]
        for key in keys:
            one, other = sorted((first(i), first(numbers.setdefault(key, i))))
            same_as[other] = one
    return [first(i) for i in range(len(operators))]


class Phase(NamedTuple):
    """A part of what is done from a start.

    Attributes
    ----------
    begin, end : float
        Shares of the start's budget.
    tied : bool
        Operators of a kind change together.
    scouted : bool
        Chains look at bundles of transfers.
    heat : float
        Of the temperature that is asked for, in annealing; 0: a descent.
    """

    begin: float
    end: float
    tied: bool
    scouted: bool
    heat: float


def phases_of(options: SearchOptions, has_ties: bool, raced: bool) -> list[Phase]:
    """The phases from a strategy, one after the other; none is scouted.

    Parameters
    ----------
    options
        How to search.
    has_ties
        Whether there are operators of a kind.
    raced
        Whether it comes from a race: then no first phase is left to do.
    """
    # Single operators matter less than whole layers: their changes are judged by a lower
    # temperature; and after a race that changed single operators as well, by half of it.
    heat = 0.1 if has_ties else 0.5 if raced else 1.0
    first = TIED_SHARE if has_ties and not raced else 0.0
    descent = 1 - DESCENT_SHARE * (1 - first) if options.descent else 1.0
    every = [Phase(0.0, first, True, False, 1.0), Phase(first, descent, False, False, heat)]
    if options.descent:
        between = descent + (1 - descent) / 2 if has_ties else descent
        every += [Phase(descent, between, True, False, 0.0), Phase(between, 1.0, False, False, 0.0)]
    return [phase for phase in every if phase.begin < phase.end]


class Start:
    """What is found from one strategy.

    Parameters
    ----------
    problem
        Graph, machine and costs.
    entry
        Where to start.
    seed
        Decides all that is random.
    count
        Chains side by side.
    options
        How to search.
    raced
        Whether it comes from a race.
    """

    def __init__(
        self,
        problem: Problem,
        entry: Entry,
        seed: int,
        count: int,
        options: SearchOptions,
        raced: bool,
    ) -> None:
        self.problem, self.entry, self.seed, self.count = problem, entry, seed, count
        self.options, self.raced = options, raced
        self._groups = tie_groups(problem)
        self.has_ties = options.tied and len(set(self._groups)) < len(self._groups)
        self._best = entry.strategy
        self._best_time = entry.best_time
        self.local_optimum = False
        self._refuted = False  # what scouts found last, when it was priced
        self._chains: list[Chain] = []
        self._scouts: list[Chain] = []
        self._ended: list[ChainState] = []
        self._made = 0  # chains so far
        self._priced: set[int] = set()  # times with bundles

    @property
    def states(self) -> list[ChainState]:
        """Of all its chains, also those that have ended, which have no times."""
        return self._ended + [chain.state for chain in self._chains + self._scouts]

    @property
    def proposals(self) -> int:
        """Of all chains."""
        return sum(state.proposals for state in self.states)

    @property
    def best_time(self) -> int:
        """ns; -1: nothing has fitted into memory."""
        times = [self._best_time, *(chain.state.best_time for chain in self._chains)]
        return min((time for time in times if time >= 0), default=-1)

    @property
    def strategy(self) -> ResolvedStrategy:
        """The fastest strategy of all chains."""
        self._keep_best()
        return self._best

    def leave(self) -> None:
        """Keep what was found, and not the chains, which hold a timeline each."""
        self._keep_best()
        self._end(self._chains)

    def search(
        self,
        pool: ThreadPoolExecutor,
        deadline: float | None,
        proposals: int | None,
        report: Callable[[float], None],
    ) -> None:
        """Run all phases until the deadline, or until each chain has made so many proposals."""
        clock = _Clock(self, deadline, proposals)
        options = self.options
        scale = 0 if options.cooling else self.entry.time_ns or 0
        whole = phases_of(options, self.has_ties, self.raced)
        for phase in (half for its in whole for half in self._halves(its, clock)):
            # Only time ends a descent, which tells what its result is.
            if clock.seconds(phase) < 0 or (phase.heat > 0 and clock.used() >= phase.end):
                continue
            before = self._best_time
            chains = self._begin(pool, phase)
            if phase.heat > 0:
                its: ChainOptions = replace(options, tied=phase.tied, scale_ns=scale)
                self._anneal(pool, chains, clock, phase, its, report)
                self._exchange(chains)
            else:
                there = self._descend(pool, chains, clock, phase, report)
                self.local_optimum = there and not phase.scouted and not phase.tied
            if phase.scouted:
                self._price(pool, self._scouts)
                self._end(self._scouts)
                self._refuted = self._best_time == before
            else:
                self._keep_best()

    def _halves(self, phase: Phase, clock: _Clock) -> Iterator[Phase]:
        """A phase, scouted as far as that is of use.

        Scouts whose last findings were no faster when they were priced have nothing more to find.
        Where time does not allow for other chains, scouts have all of it.
        """
        share = 0.0 if self._refuted else self.entry.scouted
        if (1 - share) * clock.seconds(phase) < LEAST_SIMULATIONS * self.entry.seconds:
            share = math.ceil(self.entry.scouted)
        between = phase.begin + share * (phase.end - phase.begin)
        if share > 0:
            yield phase._replace(end=between, scouted=True)
        if share < 1:
            yield phase._replace(begin=between)

    def _begin(self, pool: ThreadPoolExecutor, phase: Phase) -> list[Chain]:
        """The chains of a phase, which go on from the best so far."""
        chains = self._scouts if phase.scouted else self._chains
        if not chains:
            detail = "bundles" if phase.scouted else "transfers"
            seeds = range(self.seed + self._made, self.seed + self._made + self.count)
            self._made += self.count
            # Each begins with a simulation, which takes seconds of large problems.
            chains += pool.map(
                lambda seed: Chain(self.problem, self._best, seed, self._groups, detail), seeds
            )
        elif self.options.exchange:
            for chain in chains:
                if chain.state.best_time != self._best_time:
                    chain.adopt(self._best)
        return chains

    def _end(self, chains: list[Chain]) -> None:
        self._ended += [chain.state.ended() for chain in chains]
        chains.clear()

    def _keep_best(self) -> None:
        best_time = self.best_time
        if best_time != self._best_time:
            self._best, self._best_time = best_of(self._chains).best, best_time

    def _price(self, pool: ThreadPoolExecutor, scouts: Sequence[Chain]) -> None:
        """Simulate what scouts have found, and keep what is faster than all before."""
        found: dict[int, ResolvedStrategy] = {}
        for chain in scouts:
            coarse = chain.state.best_time
            if coarse >= 0 and coarse not in self._priced:
                found.setdefault(coarse, chain.best)
        limit = max(self._best_time - 1, 0)
        tasks = self.entry.tasks
        jobs = [pool.submit(price, self.problem, its, tasks, limit) for its in found.values()]
        for strategy, judged in zip(found.values(), wait(jobs), strict=True):
            if judged.time_ns is None:
                continue
            if self._best_time < 0 or judged.time_ns < self._best_time:
                self._best, self._best_time = strategy, judged.time_ns
        self._priced.update(found)

    def _anneal(
        self,
        pool: ThreadPoolExecutor,
        chains: Sequence[Chain],
        clock: _Clock,
        phase: Phase,
        options: ChainOptions,
        report: Callable[[float], None],
    ) -> None:
        def best_time() -> int:
            return best_of(chains).state.best_time

        start, end = phase.begin, phase.end
        improved_at, best = max(start, clock.used()), best_time()
        slices, priced = 0, 0.0
        begin = time.monotonic()
        while (now := clock.used()) < end:
            done = max(0.0, now - start) / (end - start)
            cool = max(1e-3, 1.0 - done) if self.options.cooling else 1.0
            its = replace(options, temperature=self.options.temperature * phase.heat * cool)
            self._slice(pool, chains, its, clock)
            slices += 1
            if best_time() != best:
                best, improved_at = best_time(), now
            elif now - improved_at > (end - start) / 2:
                break  # half of the budget without an improvement
            if slices % EXCHANGE_SLICES == 0:
                self._exchange(chains)
                allowed = PRICING_SHARE * (time.monotonic() - begin)
                late = clock.deadline is not None and priced + self.entry.seconds > allowed
                if phase.scouted and not late:
                    before = time.monotonic()
                    self._price(pool, [best_of(chains)])
                    priced += time.monotonic() - before
            report(now)

    def _slice(
        self,
        pool: ThreadPoolExecutor,
        chains: Sequence[Chain],
        options: ChainOptions,
        clock: _Clock,
    ) -> None:
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
                for i, chain in enumerate(chains)
            ]
        )

    def _heat(self, chain: int) -> float:
        """Chains from 1 to `HOTTEST` times the temperature, if they exchange what they find."""
        if not self.options.exchange:
            return 1.0
        return math.pow(HOTTEST, chain / max(1, self.count - 1))

    def _descend(
        self,
        pool: ThreadPoolExecutor,
        chains: Sequence[Chain],
        clock: _Clock,
        phase: Phase,
        report: Callable[[float], None],
    ) -> bool:
        """Whether the best strategy has become a local optimum.

        Without a deadline one chain does all, since then the result must not depend on speed.
        """
        if best_of(chains).state.best_time < 0:
            return False  # nothing fits into memory, so there is nothing to descend from
        its = [best_of(chains)] if clock.deadline is None else chains
        # What follows may have the time that this one leaves.
        end = clock.time_of(phase.end)
        return descend(its, pool, end, phase.tied, lambda: report(clock.used()))

    def _exchange(self, chains: Sequence[Chain]) -> None:
        """All chains go on from the best strategy of any."""
        if not self.options.exchange:
            return
        best = best_of(chains)
        best_time = best.state.best_time
        if best_time < 0:
            return
        behind = [chain for chain in chains if chain.state.current_time != best_time]
        if behind:
            strategy = best.best
            for chain in behind:
                chain.adopt(strategy)


class _Clock:
    """How much of a start's budget is used up, as a share."""

    def __init__(self, start: Start, deadline: float | None, proposals: int | None) -> None:
        self.deadline = deadline
        self.proposals = proposals
        self._start = start
        self._begin = time.monotonic()

    def used(self) -> float:
        """0 to 1, and beyond."""
        shares = [0.0]
        if self.deadline is not None:
            length = max(self.deadline - self._begin, 1e-9)
            shares.append((time.monotonic() - self._begin) / length)
        if self.proposals is not None:
            shares.append(self._start.proposals / (self.proposals * self._start.count))
        return max(shares)

    def time_of(self, share: float) -> float | None:
        """When so much of it will be used up, by `time.monotonic`; None: there is no deadline."""
        if self.deadline is None:
            return None
        return self._begin + share * (self.deadline - self._begin)

    def seconds(self, phase: Phase) -> float:
        """What is left for a phase."""
        end = self.time_of(phase.end)
        return math.inf if end is None else end - time.monotonic()
