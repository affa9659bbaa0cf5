"""Searches by chains of strategies, from several starts: annealing, and the paper's own.

A chain tries changes in native code; `flexlegion.searches.start` has the phases of several chains
from one start, on several cores; here the starts share the budget.

By default this is annealing. A chain has three phases: operators of a kind (the unrolled steps of a
layer, repeated blocks) change together; then each operator by itself; at last a descent to a
strategy that no change of a single operator improves. In each of the first two the temperature
falls; proposals prefer what may help, and chains go on from the best of them, without a correction
as Hastings' ratio would be one. So the chains sample no distribution, which a search does not need.
After the first phase, the third of the starts that led furthest goes on: a start that is fast need
not lead far, so none is left before that.

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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from flexlegion.base.errors import UserError
from flexlegion.searches.chain import ChainState, SplitsOf, prepare_candidates
from flexlegion.searches.memory import saves_memory, with_less
from flexlegion.searches.options import Budget, SearchOptions
from flexlegion.searches.start import TIED_SHARE, Start
from flexlegion.sim.problem import Problem
from flexlegion.strategy.strategy import ResolvedStrategy

# Of the starts, which part goes on after the first phase, at least one.
GO_ON = 1 / 3
# Of the whole budget, where operators are run again or weights sharded: what remains to try less of
# that.
LESS_SHARE = 0.1


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
        Initial strategies by name. The result is never slower than any of them.
    budget
        When to stop. A start's phase is also left when half of its budget brought no improvement.
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
    runs: list[Start] = []
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
    race = options.race and len(starts) > 1
    first = TIED_SHARE if race else 1.0  # of each start's share, and so of all of it
    going_on = max(1, round(GO_ON * len(starts)))
    try:
        with ThreadPoolExecutor(count) as pool:
            for index, (name, strategy) in enumerate(starts.items()):
                deadline: float | None = None
                if share is not None:
                    deadline = begin + first * share * (index + 1)
                # What there is no time left for is simulated, at least: the result is never slower.
                late = deadline is not None and time.monotonic() >= deadline
                its = 1 if late else count
                run = Start(problem, name, strategy, seed + 1000 * index, its, options, pool)
                runs.append(run)
                done, part = first * index / len(starts), first / len(starts)
                report = _report(progress, runs, done, part, 0.0, first, note)
                note()
                run.search(pool, deadline, budget.proposals, report, 0.0, first)
                for other in _ranked(runs)[going_on:] if race else ():
                    other.leave()
            for place, run in enumerate(_ranked(runs)[:going_on] if race else ()):
                part = (1 - first) / going_on
                done = first + part * place
                deadline = None if seconds is None else begin + (done + part) * seconds
                report = _report(progress, runs, done, part, first, 1.0, note)
                run.search(pool, deadline, budget.proposals, report, first, 1.0)
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
        {run.name: run.states for run in runs},
        time.monotonic() - begin,
        best.local_optimum and found[best.name][1] == best.best_time,
        ended_by is not None,
        tuple(trace),
        ended_by,
    )


def _ranked(runs: Sequence[Start]) -> list[Start]:
    """What led furthest comes first, and what has not fitted into memory last."""
    return sorted(runs, key=lambda run: (run.best_time < 0, run.best_time))


def _proposals(runs: Sequence[Start]) -> int:
    return sum(state.proposals for run in runs for state in run.states)


def _report(
    progress: Progress | None,
    runs: Sequence[Start],
    done: float,
    share: float,
    begin: float,
    end: float,
    note: Callable[[], None],
) -> Callable[[float], None]:
    """Tells how far the whole search is while a start's phases from `begin` to `end` are under way.

    So much was done before, and they are such a share of it.
    """

    def report(used: float) -> None:
        note()
        if progress is not None:
            times = [run.best_time for run in runs if run.best_time >= 0]
            part = (min(used, end) - begin) / (end - begin)
            progress(done + share * part, min(times, default=-1))

    return report
