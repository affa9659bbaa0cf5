"""Searches by chains of strategies, from several starts: annealing, and the paper's own.

A chain tries changes in native code; here starts and phases share the budget.

By default this is annealing. A race of chains from all starts decides from where to go on: many
run for a short time, then fewer for longer (`flexlegion.searches.race`); operators of a kind (the
unrolled steps of a layer, repeated blocks) change together meanwhile. From each of the best that
it ends with, chains change each operator by itself, and at last descend to a strategy that no
change of a single operator improves (`flexlegion.searches.start`). In each phase the temperature
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

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from flexlegion.base.errors import UserError
from flexlegion.searches.chain import ChainState, SplitsOf, prepare_candidates
from flexlegion.searches.descent import wait
from flexlegion.searches.entry import Entry
from flexlegion.searches.memory import saves_memory, with_less
from flexlegion.searches.options import Budget, SearchOptions
from flexlegion.searches.proof import Proof, can_be_proved
from flexlegion.searches.race import Race
from flexlegion.searches.result import SearchResult
from flexlegion.searches.start import Start, tie_groups
from flexlegion.sim.problem import Problem
from flexlegion.strategy.strategy import ResolvedStrategy

# Without a time to keep to, a search is the same on any machine, however many cores it has.
REPEATABLE_CHAINS = 2
# Of the budget, what the race takes; and from how many of those who are left there, chains go on.
RACE_SHARE, GO_ON = 0.5, 2
# Of the budget, what a proof may take before chains run, and at most so many seconds.
PROOF_SHARE, PROOF_SECONDS = 0.3, 5.0
# Of the whole budget, where operators are run again or weights sharded: what remains to try less of
# that.
LESS_SHARE = 0.1


class Progress(Protocol):
    """Who is told how far a search is."""

    def __call__(self, share: float, best_ns: int, phase: str = "", /) -> None:
        """The share of the budget that is used up, the best time so far in ns, and what is done."""


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
        Initial strategies by name. The result is never slower than any of them.
    budget
        When to stop. A start's phase is also left when half of its budget brought no improvement.
    seed
        Decides everything random.
    chains
        Chains side by side, each in a thread; by default one a core, or of a budget without
        seconds `REPEATABLE_CHAINS`.
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
    saves = any(map(saves_memory, starts.values()))
    cores = REPEATABLE_CHAINS if budget.seconds is None else os.cpu_count()
    count = chains or cores or 1
    so_far = _SoFar(begin, budget.seconds, LESS_SHARE if saves else 0.0, progress)
    ended_by = None
    try:
        with ThreadPoolExecutor(count) as pool:
            so_far.entries = wait(
                [
                    pool.submit(Entry.of, problem, name, strategy, options.bundles)
                    for name, strategy in starts.items()
                ]
            )
            so_far.reporter(0.0, 0.0, "starts")(0.0)
            name, strategy = so_far.fastest
            if so_far.seconds is not None and can_be_proved(problem, strategy, options):
                so_far.proof = Proof(problem, name, strategy)
                so_far.prove(begin + min(PROOF_SHARE * so_far.seconds, PROOF_SECONDS), 0.0)
            if so_far.proof is None or not so_far.proof.complete:
                _run(problem, budget, seed, count, options, pool, so_far)
            if so_far.proof is not None and so_far.seconds is not None:
                so_far.prove(begin + so_far.seconds, 1.0)
    except KeyboardInterrupt as e:
        ended_by = e
    found = so_far.found()
    if not found:
        if ended_by is not None:
            raise ended_by
        what = "all that training allocates there (simulate shows it beside the peak)"
        if problem.space is not None:
            what = f"what its program for {problem.space.name} keeps there (export shows it)"
        raise UserError(
            f"no strategy was found that fits into the machine's memories, by {what}; take a "
            "smaller batch or more micro-batches, or a machine with more devices or larger memories"
        )
    so_far.note(last=True)
    best, (strategy, best_ns) = next(iter(found.items()))
    if saves and ended_by is None:
        left = None if budget.seconds is None else LESS_SHARE * budget.seconds
        found[best] = with_less(problem, strategy, left)
        so_far.trace.append((so_far.proposals, found[best][1]))
    return SearchResult(
        *found[best],
        best,
        found,
        {entry.name: entry.time_ns for entry in so_far.entries},
        so_far.states(),
        time.monotonic() - begin,
        found[best][1] == best_ns
        and any(run.local_optimum and run.best_time == best_ns for run in so_far.runs),
        ended_by is not None,
        tuple(so_far.trace),
        ended_by,
        count,
        so_far.proof is not None and so_far.proof.complete and found[best][1] == best_ns,
    )


def _run(
    problem: Problem,
    budget: Budget,
    seed: int,
    count: int,
    options: SearchOptions,
    pool: ThreadPoolExecutor,
    so_far: _SoFar,
) -> None:
    """Race, and then go on from those who came first; or without a race, from every start."""
    # Of each chain from each start: all chains, and all starts, share that.
    every = None if budget.proposals is None else budget.proposals * len(so_far.entries)
    on, used = so_far.entries, 0.0
    if options.race:
        so_far.race = Race(problem, so_far.entries, tie_groups(problem), seed, count, options)
        used = RACE_SHARE
        on = so_far.race.run(
            pool,
            so_far.time_of(used),
            None if every is None else round(used * every * count),
            so_far.reporter(0.0, used, "race"),
        )[:GO_ON]
    share = (1 - used) / len(on)
    for index, entry in enumerate(on):
        run = Start(problem, entry, seed + 1000 * (index + 1), count, options, options.race)
        so_far.runs.append(run)
        end = used + share
        most = None if every is None else max(1, round(share * every))
        phase = f"from {entry.name}"
        run.search(pool, so_far.time_of(end), most, so_far.reporter(used, end, phase))
        run.leave()
        used = end


class _Finder(Protocol):
    @property
    def strategy(self) -> ResolvedStrategy: ...


class _SoFar:
    """What has been found so far, and how much of the budget is used up.

    Parameters
    ----------
    begin
        When the search began, by `time.monotonic`.
    seconds
        The budget; None: without a limit.
    kept
        The share of it that is for later.
    progress
        Who is told.
    """

    def __init__(
        self, begin: float, seconds: float | None, kept: float, progress: Progress | None
    ) -> None:
        self.begin, self.progress = begin, progress
        self.seconds = None if seconds is None else (1 - kept) * seconds
        self.entries: list[Entry] = []
        self.proof: Proof | None = None
        self.race: Race | None = None
        self.runs: list[Start] = []
        self.trace: list[tuple[int, int]] = []

    def states(self) -> dict[str, list[ChainState]]:
        """Of all chains, by start."""
        every: dict[str, list[ChainState]] = {entry.name: [] for entry in self.entries}
        for name, states in self.race.states.items() if self.race is not None else ():
            every[name] += states
        for run in self.runs:
            every[run.entry.name] += run.states
        return every

    @property
    def fastest(self) -> tuple[str, ResolvedStrategy]:
        """Of all that has been found, or of the starts, if nothing fits; and its start's name."""
        for name, (strategy, _) in self.found().items():
            return name, strategy
        return self.entries[0].name, self.entries[0].strategy

    def prove(self, deadline: float, share: float) -> None:
        """Look for the optimum until then; such a share of the budget is told to be used up."""
        assert self.proof is not None
        for name, (strategy, time_ns) in list(self.found().items())[:1]:
            self.proof.offer(name, strategy, time_ns)
        self.proof.run(deadline, lambda: self.reporter(share, share, "proof")(0.0))

    @property
    def proposals(self) -> int:
        """Of all chains."""
        return sum(state.proposals for states in self.states().values() for state in states)

    def _offers(self) -> Iterator[tuple[int, str, _Finder]]:
        """What has been found: the exact time (-1: none is known), and from which start."""
        for entry in self.entries:
            yield entry.best_time, entry.name, entry
        if self.proof is not None:
            yield self.proof.best_time, self.proof.name, self.proof
        for runner in self.race.runners if self.race is not None else ():
            yield runner.exact_ns, runner.entry.name, runner
        for run in self.runs:
            yield run.best_time, run.entry.name, run

    def found(self) -> dict[str, tuple[ResolvedStrategy, int]]:
        """The best from each start, with its time; the fastest first."""
        best: dict[str, tuple[ResolvedStrategy, int]] = {}
        for time_ns, name, finder in sorted(self._offers(), key=lambda its: its[0]):
            if time_ns >= 0 and name not in best:
                best[name] = finder.strategy, time_ns
        return best

    def note(self, last: bool = False) -> int:
        """Put the best time into the trace if it is new, or the last; it is -1 if nothing fits."""
        best = min((time_ns for time_ns, _, _ in self._offers() if time_ns >= 0), default=-1)
        if best >= 0 and (last or not self.trace or best < self.trace[-1][1]):
            self.trace.append((self.proposals, best))
        return best

    def time_of(self, share: float) -> float | None:
        """When so much of the budget will be used up."""
        return None if self.seconds is None else self.begin + share * self.seconds

    def reporter(self, begin: float, end: float, phase: str) -> Callable[[float], None]:
        """Tells how far the search is, of a phase that goes from `begin` to `end`."""

        def report(used: float) -> None:
            best = self.note()
            if self.progress is not None:
                self.progress(begin + min(used, 1.0) * (end - begin), best, phase)

        return report
