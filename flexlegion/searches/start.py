"""The chains from one start of a search, and their phases."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from flexlegion.graph.graph import Operator
from flexlegion.searches.chain import Chain, ChainOptions, ChainState
from flexlegion.searches.descent import best_of, descend, wait
from flexlegion.searches.options import SearchOptions
from flexlegion.sim.problem import Problem
from flexlegion.strategy.strategy import ResolvedStrategy

# A chain cannot be interrupted within a slice: short enough for Ctrl-C and progress to feel prompt.
SLICE_SECONDS = 0.1
SLICE_PROPOSALS = 64
# Of each start's budget, the shares of the phases; what is left goes to the descent.
TIED_SHARE, UNTIED_SHARE = 0.45, 0.35
# The last of several chains is that much hotter than the first: small problems want the hot ones,
# which leave local optima, large ones the cool ones, which get anywhere in the time.
HOTTEST = 10.0
# After so many slices, chains of one start go on from the best of them.
EXCHANGE_SLICES = 20


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


class Start:
    """The chains from one start."""

    def __init__(
        self,
        problem: Problem,
        name: str,
        strategy: ResolvedStrategy,
        seed: int,
        chains: int,
        options: SearchOptions,
        pool: ThreadPoolExecutor,
    ) -> None:
        self.name = name
        self.options = options
        groups = tie_groups(problem)
        self.has_ties = options.tied and len(set(groups)) < len(groups)
        # Each begins with a simulation, which takes seconds of large problems.
        self.chains = list(
            pool.map(lambda i: Chain(problem, strategy, seed + i, groups), range(chains))
        )
        first = self.chains[0].state
        self.start_time = first.best_time if first.best_time >= 0 else None
        self.local_optimum = False
        self._left: tuple[ResolvedStrategy, list[ChainState]] | None = None

    @property
    def states(self) -> list[ChainState]:
        """Of its chains; of one that was left, what they were then."""
        return self._left[1] if self._left else [chain.state for chain in self.chains]

    @property
    def best_time(self) -> int:
        """ns; -1: nothing has fitted into memory."""
        times = [state.best_time for state in self.states]
        return min((time for time in times if time >= 0), default=-1)

    @property
    def best(self) -> ResolvedStrategy:
        """The fastest strategy of all chains."""
        return self._left[0] if self._left else best_of(self.chains).best

    def leave(self) -> None:
        """Keep what was found, and not the chains, which hold a timeline each."""
        if self._left is None:
            self._left = (self.best, self.states)
            self.chains = []

    def search(
        self,
        pool: ThreadPoolExecutor,
        deadline: float | None,
        proposals: int | None,
        report: Callable[[float], None],
        begin: float,
        end: float,
    ) -> None:
        """Run phases until the deadline, or until so many proposals were made by each chain.

        Those that are from `begin` to `end`, shares of the whole: the first phase, what follows it,
        or all of them.
        """
        clock = _Clock(deadline, proposals, len(self.chains), begin, end)
        base: ChainOptions = self.options
        if not self.options.cooling:
            base = replace(base, scale_ns=self.chains[0].state.current_time)
        # Single operators matter less than whole layers: their changes are judged by a lower
        # temperature.
        split = self.has_ties or end - begin < 1
        phases = [(self.has_ties, TIED_SHARE, 1.0)] if split else []
        untied = UNTIED_SHARE + (0.0 if split else TIED_SHARE)
        # After a first phase that changed single operators as well, they need not be that cool.
        phases.append((False, untied, 0.1 if self.has_ties else 0.5 if split else 1.0))
        if not self.options.descent:
            phases[-1] = (False, 1.0 - sum(share for _, share, _ in phases[:-1]), phases[-1][2])
        used = 0.0
        for tied, share, heat in phases:
            if begin <= used and used + share <= end:
                now = replace(base, tied=tied)
                self._phase(pool, clock, used, used + share, now, heat, report)
                self._exchange()
            used += share
        if self.options.descent and end == 1:
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
    """How much of a start's budget is used up, as a share: from one to another by the deadline."""

    def __init__(
        self,
        deadline: float | None,
        proposals: int | None,
        chains: int,
        first: float,
        last: float,
    ) -> None:
        self.deadline = deadline
        self.proposals = proposals
        self._chains = chains
        self._begin = time.monotonic()
        self._first, self._last = first, last

    def used(self, chains: Sequence[Chain]) -> float:
        """0 to 1, and beyond."""
        shares = [0.0]
        if self.deadline is not None:
            length = max(self.deadline - self._begin, 1e-9)
            done = (time.monotonic() - self._begin) / length
            shares.append(self._first + done * (self._last - self._first))
        if self.proposals is not None:
            made = sum(chain.state.proposals for chain in chains)
            shares.append(made / (self.proposals * self._chains))
        return max(shares)
