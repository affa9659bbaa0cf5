"""A race of chains from all starts: many for a short time, then fewer and fewer for longer.

A start that is fast need not lead far, and of two chains from one start, one may end in a basin
much deeper than the other's. Neither shows at once. So many chains run from each start, the slower
half of them is left, the others run twice as long, and so on (successive halving, after Jamieson
and Talwalkar, 2016). Operators of a kind change together meanwhile: that leads far in a short time.
In graphs of few operators, half of the chains change each by itself.

Where much of a task graph is transfers, half of the chains look at bundles of them (`DETAILS`):
that is quicker and finds other basins, but its times are not exact. So these race among themselves,
and what their last ones have found is priced, that is simulated as it is. Where simulating each
transfer takes too long, all chains look at bundles.
"""

from __future__ import annotations

import concurrent.futures
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from flexlegion.searches.chain import Chain, ChainOptions, ChainState
from flexlegion.searches.entry import Entry
from flexlegion.searches.options import SearchOptions
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import DETAILS
from flexlegion.strategy.strategy import ResolvedStrategy

ROUNDS = 4
MOST_RUNNERS = 32
# In the first round a runner has at least that: so many times what its task graph takes to make, so
# many seconds, or proposals. If there are more starts than that allows, it has less.
LEAST_GRAPHS = 4
LEAST_SECONDS = 0.2
LEAST_SECONDS_OF_FEW = 0.05
LEAST_PROPOSALS = 64
# At the end of a round, the temperature is such a share of what it was at its beginning.
COOLED = 0.4
# Runners that look at each transfer are so many times as hot, which finds other basins than the
# others' do: networks of few operators want that.
HOT = 4.0
# In a graph of so few operators, a runner needs less time, and half of those that look at each
# transfer change each operator by itself: two of a kind may have to differ.
FEW_OPERATORS = 64
# From one start come such a share of those who go on, at most.
QUOTA = 0.5
# Chains look at each transfer if they have time to simulate so many strategies in the first round;
# and at bundles if these are such a share of a search (Entry.scouted).
LEAST_SIMULATIONS = 5
LEAST_SCOUTED = 0.25
SLICE_SECONDS = 0.05
SLICE_PROPOSALS = 64
REPORT_SECONDS = 0.1


@dataclass
class Runner:
    """One of those who race.

    Parameters
    ----------
    entry
        Its start.
    seed
        Decides what is random in it.
    strategy
        The best that it has found.
    time_ns
        Of that; -1: nothing has fitted into memory.
    detail
        What its chains look at, and its time is of; one of `DETAILS`.
    heat
        Of the temperature that is asked for.
    tied
        Operators of a kind change together.
    states
        Of its chains, which have ended and have no times.
    """

    entry: Entry
    seed: int
    strategy: ResolvedStrategy
    time_ns: int
    detail: str
    heat: float
    tied: bool
    states: list[ChainState] = field(default_factory=list)

    def key(self) -> tuple[bool, int]:
        """The fastest is the least, and what does not fit into memory the largest."""
        return self.time_ns < 0, self.time_ns

    @property
    def exact_ns(self) -> int:
        """Its exact time; -1: it is not known, or nothing has fitted into memory."""
        return self.time_ns if self.detail == "transfers" else -1


@dataclass(frozen=True)
class Turn:
    """What a runner may do in a round.

    Parameters
    ----------
    number
        Of the round.
    seconds, deadline
        How long, and by `time.monotonic` until when.
    proposals
        How many; None: any number.
    """

    number: int
    seconds: float
    deadline: float
    proposals: int | None


class Race:
    """The race, and what has been found so far.

    Parameters
    ----------
    problem
        Graph, machine and costs, with candidates.
    entries
        All starts.
    groups
        A number for each operator; equal ones change together.
    seed
        Decides all that is random.
    count
        Threads.
    options
        How to search.
    """

    def __init__(
        self,
        problem: Problem,
        entries: Sequence[Entry],
        groups: Sequence[int],
        seed: int,
        count: int,
        options: SearchOptions,
    ) -> None:
        self.problem, self.entries, self.groups = problem, entries, groups
        self.seed, self.count, self.options = seed, count, options
        self.runners: list[Runner] = []
        self._stop = threading.Event()

    @property
    def states(self) -> Mapping[str, list[ChainState]]:
        """Of all chains that have ended, by start."""
        every: dict[str, list[ChainState]] = {entry.name: [] for entry in self.entries}
        for runner in self.runners:
            every[runner.entry.name] += runner.states
        return every

    def run(
        self,
        pool: ThreadPoolExecutor,
        deadline: float | None,
        proposals: int | None,
        report: Callable[[float], None],
    ) -> list[Entry]:
        """Race until the deadline, or until all runners together have made so many proposals.

        Parameters
        ----------
        pool
            With as many threads.
        deadline
            By `time.monotonic`.
        proposals
            None: any number.
        report
            Called now and then with the share that is done.

        Returns
        -------
        list
            What the last runners have found, once, the fastest first.
        """
        begin = time.monotonic()
        length = math.inf if deadline is None else max(0.0, deadline - begin)
        self._line_up(length, proposals)
        racing = self.runners
        for round_ in range(ROUNDS):
            end = begin + length * (round_ + 1) / ROUNDS
            seconds = max(0.0, end - time.monotonic()) / math.ceil(len(racing) / self.count)
            share = None if proposals is None else proposals // (ROUNDS * len(racing))
            turn = Turn(round_, seconds, end, share)
            done = [pool.submit(self._take_turn, runner, turn) for runner in racing]
            self._wait(done, partial(self._tell, report, begin, length, round_))
            racing = [
                runner for detail in DETAILS for runner in self._ahead(racing, detail, round_)
            ]
        jobs = [pool.submit(self._entry_of, runner) for runner in racing]
        self._wait(jobs, lambda: None)
        finals: list[Entry] = []
        for job in jobs:
            entry = job.result()
            if all(entry.strategy != other.strategy for other in finals):
                finals.append(entry)
        return sorted(finals, key=lambda its: its.time_ns or math.inf)

    def _line_up(self, seconds: float, proposals: int | None) -> None:
        """As many runners as have some time in the first round, but all starts, tied and not."""
        most = MOST_RUNNERS
        if seconds < math.inf:
            graph = max(entry.sketch_seconds for entry in self.entries)
            seconds_each = LEAST_SECONDS_OF_FEW if self._few_operators else LEAST_SECONDS
            least = max(seconds_each, LEAST_GRAPHS * graph)
            most = min(most, int(seconds * self.count / ROUNDS / least))
        if proposals is not None:
            most = min(most, proposals // (ROUNDS * LEAST_PROPOSALS))
        runners = max(most, (2 if self._few_operators else 1) * len(self.entries))
        turn = seconds * self.count / ROUNDS / runners
        for i in range(runners):
            entry = self.entries[i % len(self.entries)]
            exact = turn >= LEAST_SIMULATIONS * entry.seconds
            bundles = self.options.bundles and entry.scouted >= LEAST_SCOUTED
            number = i // len(self.entries)  # of those from its start
            scouts = bundles and (not exact or number % 2 == 0)
            detail = "bundles" if scouts else "transfers"
            heat = 1.0 if scouts else HOT
            alternate = self._few_operators and not scouts
            of_exact = number // 2 if bundles else number
            tied = self.options.tied and not (alternate and of_exact % 2 == 1)
            seed, time_ns = self.seed + i, entry.best_time
            self.runners.append(Runner(entry, seed, entry.strategy, time_ns, detail, heat, tied))

    @property
    def _few_operators(self) -> bool:
        return len(self.problem.graph.operators) <= FEW_OPERATORS

    @staticmethod
    def _ahead(runners: Sequence[Runner], detail: str, round_: int) -> list[Runner]:
        """The faster half of those who look at the same, but two; after the last round, two."""
        its = sorted((runner for runner in runners if runner.detail == detail), key=Runner.key)
        wanted = 2 if round_ + 1 == ROUNDS else max(2, math.ceil(len(its) / 2))
        most = max(1, math.ceil(QUOTA * wanted))
        ahead: list[Runner] = []
        for runner in its:
            same = sum(runner.entry is other.entry for other in ahead)
            if len(ahead) < wanted and same < most:
                ahead.append(runner)
        return ahead

    @staticmethod
    def _tell(report: Callable[[float], None], begin: float, length: float, round_: int) -> None:
        if length == math.inf:
            report(round_ / ROUNDS)
        else:
            report(min(1.0, (time.monotonic() - begin) / max(length, 1e-9)))

    def _wait(
        self, futures: Sequence[concurrent.futures.Future[Any]], report: Callable[[], None]
    ) -> None:
        """Until all are done. An interrupt stops chains within a slice: none is left running."""
        left = set(futures)
        try:
            while left:
                done, left = concurrent.futures.wait(left, REPORT_SECONDS)
                for future in done:
                    future.result()
                report()
        except BaseException:
            self._stop.set()
            concurrent.futures.wait(left)
            raise

    def _take_turn(self, runner: Runner, turn: Turn) -> None:
        begin = time.monotonic()
        end = min(begin + turn.seconds, turn.deadline)
        if begin >= end:
            return
        seed = runner.seed + MOST_RUNNERS * turn.number
        chain = Chain(self.problem, runner.strategy, seed, self.groups, runner.detail)
        self._run(chain, runner, turn, end)
        runner.strategy, runner.time_ns = chain.best, chain.state.best_time
        runner.states.append(chain.state.ended())

    def _run(self, chain: Chain, runner: Runner, turn: Turn, end: float) -> None:
        begin = time.monotonic()
        most = math.inf if turn.proposals is None else max(1, turn.proposals)
        timed = end < math.inf
        scale = 0 if self.options.cooling else runner.entry.time_ns or 0
        while not self._stop.is_set():
            made = chain.state.proposals
            used = made / most
            if timed:
                used = max(used, (time.monotonic() - begin) / max(end - begin, 1e-9))
            if used >= 1:
                break
            heat = runner.heat
            if self.options.cooling:
                heat *= COOLED ** (turn.number + used)
            its: ChainOptions = replace(
                self.options,
                temperature=heat * self.options.temperature,
                scale_ns=scale,
                tied=runner.tied,
            )
            slice_ = 10**12 if most == math.inf else int(min(SLICE_PROPOSALS, most - made))
            left = max(1e-3, end - time.monotonic())
            chain.run(slice_, min(SLICE_SECONDS, left) if timed else 0.0, its)

    def _entry_of(self, runner: Runner) -> Entry:
        """What a runner has found; its start, if that is faster."""
        start = runner.entry
        if runner.strategy == start.strategy:
            return start
        found = Entry.of(self.problem, start.name, runner.strategy, self.options.bundles)
        better = found.time_ns is not None and (
            start.time_ns is None or found.time_ns < start.time_ns
        )
        return found if better else start
