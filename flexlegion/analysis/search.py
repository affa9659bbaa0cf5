"""Search for a fast strategy on a machine (FlexFlow, section 6)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Unpack

from flexlegion.analysis.number_of_rounds import Case, in_rounds
from flexlegion.analysis.program import time_as_program
from flexlegion.analysis.result import Iteration, iteration_of
from flexlegion.analysis.setting import AnyMachine, AnyModel, Setting, network_of
from flexlegion.analysis.starts import starts_of
from flexlegion.base.arguments import typed
from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import unknown
from flexlegion.console.blocks import Block, Pairs
from flexlegion.console.progress import ProgressBar
from flexlegion.console.text import count, duration
from flexlegion.graph.operator_type import DimKind
from flexlegion.known_strategies import AnyStrategy, granularity_of, named, read_strategy
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingOptions
from flexlegion.report.timelines import described, details
from flexlegion.searches.budget import budget_of, check_search
from flexlegion.searches.least_time import least_time
from flexlegion.searches.options import Budget, SearchOptions
from flexlegion.searches.registry import ANNEALING, SEARCHES, SearchTask, run_search
from flexlegion.searches.result import SearchResult
from flexlegion.sim.problem import Needs, Problem
from flexlegion.sim.simulator import NO_MEMORY, Reference, full, reference
from flexlegion.strategy.configuration import SPLIT

REFERENCES = ("data", "expert")
# What a search has of its budget at least, however long its starts took to find.
LEAST_SECONDS = 0.1


@dataclass(frozen=True, repr=False)
class Found(Iteration):
    """What `search` returns: the fastest strategy, and how it was found; `facts` has more.

    Attributes
    ----------
    setting : Setting
        Model, machine and costs.
    data_parallel_time_ns, expert_time_ns : int or None
        Of known strategies; None: `untimed` says why.
    untimed : dict
        Why a known strategy has no time, as the end of a sentence.
    speedup, speedup_over_expert : float or None
        Over these.
    start : str
        From which start it came.
    start_times_ns : dict
        Simulated time of each start; None: it does not fit into memory.
    least_time_ns : int
        What any strategy of the search space takes at least (`flexlegion.searches.least_time`; of
        an optimum, what it takes).
    gap : float
        By which share this one takes longer than that, at most so much longer than the best.
    optimum : bool
        Whether it was proved that no strategy of the search space is faster.
    local_optimum : bool
        Whether no change of a single operator makes it faster.
    interrupted : bool
        Whether Ctrl-C ended the search.
    proposals : int
        Of all chains.
    seconds : float
        What the search took.
    notes : tuple of str
        Which starts were left out, and why.
    result : SearchResult
        As the search itself tells it: the best from each start, every chain's state.
    """

    setting: Setting
    data_parallel_time_ns: int | None
    expert_time_ns: int | None
    untimed: dict[str, str]
    speedup: float | None
    speedup_over_expert: float | None
    start: str
    start_times_ns: dict[str, int | None]
    least_time_ns: int
    gap: float
    optimum: bool
    local_optimum: bool
    interrupted: bool
    proposals: int
    seconds: float
    notes: tuple[str, ...]
    result: SearchResult = field(repr=False)

    def facts(self) -> dict[str, Any]:
        needs = self.program_memory
        return (
            self.strategy.told
            | {
                "strategy": self.strategy.source,
                "in_words": self.setting.in_words(self.strategy),
                "seconds": self.seconds,
                "counts": _counts(self.result),
                "untimed": self.untimed,
            }
            | details(self.timeline, self._priced_by)
            | self.setting.throughput(self.iteration_time_ns).facts()
            | ({} if needs is None else {"memory_of_each_device": needs.facts()})
            | ({} if needs is None else {"program_time_ns": self.program_time_ns})
        )

    def blocks(self) -> Sequence[Block]:
        return [str(self.setting), self._story(), *described(self.timeline, self._priced_by)]

    @property
    def _priced_by(self) -> Counter[str]:
        return self.setting.problem.priced_by(self.strategy)

    def _story(self) -> Pairs:
        """From where, how far, and how it ended."""
        references = {"data": self.data_parallel_time_ns, "expert": self.expert_time_ns}
        rows = [
            (f"start {name}", "does not fit into memory" if its_ns is None else duration(its_ns))
            for name, its_ns in self.start_times_ns.items()
        ]
        for name, its_ns in references.items():
            if its_ns is None and self.start_times_ns.get(name) is None:
                rows.append((name, self.untimed[name]))
            elif name not in self.start_times_ns and its_ns is not None:
                rows.append((name, duration(its_ns)))
        rows.append(("found", f"{duration(self.iteration_time_ns)}, from start {self.start}"))
        rows.append(("in words", self.setting.in_words(self.strategy)))
        for name, its_ns in references.items():
            if its_ns is not None:
                what = "data parallelism" if name == "data" else "the experts' strategy"
                rows.append(("speed-up", f"{its_ns / self.iteration_time_ns:.2f}x over {what}"))
        if not self.optimum:
            least = f"takes {duration(self.least_time_ns)} at least"
            rows.append(("any strategy", f"{least}: found is within {self.gap:.0%} of the best"))
        rows += self.setting.throughput(self.iteration_time_ns).rows()
        rows.append(("search", f"{count(self.proposals, 'proposal')} in {self.seconds:.1f} s"))
        if self.optimum:
            end = "at the optimum: it was proved that none of the search space is faster"
        elif self.local_optimum:
            end = "at a local optimum: no change of a single operator makes it faster"
        elif self.interrupted:
            end = "by interrupt, before a local optimum"
        else:
            end = "by its budget, before a local optimum: a longer search may find more"
        rows.append(("ended", end))
        if (needs := self.program_memory) is not None:
            what = f"with NCCL it takes {duration(self.program_time_ns or 0)} an iteration; {needs}"
            rows.append(("as a program", what))
        return Pairs(rows)

    @cached_property
    def program_time_ns(self) -> int | None:
        """What an exported program takes, as `simulate_program` says; None: as of its memory."""
        space = self.setting.problem.space
        return None if space is None else time_as_program(self.setting, self.strategy, space.name)

    @property
    def program_memory(self) -> Needs | None:
        """What an exported program needs; None: the search was not within a target's space."""
        problem = self.setting.problem
        return None if problem.space is None else problem.space.memory(problem, self.strategy)


@typed
def search(
    model: AnyModel,
    machine: AnyMachine,
    budget: str | float | Budget | None = None,
    *,
    proposals: int | None = None,
    costs: str = "auto",
    profile_db: str | None = None,
    start: Sequence[AnyStrategy] | None = None,
    dimensions: Sequence[str] | None = None,
    space: str | None = None,
    seed: int = 0,
    chains: int | None = None,
    options: SearchOptions | None = None,
    search: str = ANNEALING,
    most_micro_batches: int | None = None,
    progress: bool = True,
    **training: Unpack[TrainingOptions],
) -> Found:
    """Search for a fast strategy on a machine; needs neither that machine nor Legion.

    Parameters
    ----------
    model, machine, costs, profile_db
        See `flexlegion.simulate`.
    budget
        How long to search: ``"30s"``, ``"2m"``, seconds. By default a minute, or with `proposals`
        without a limit. Ctrl-C ends the search with the best so far.
    proposals
        How many each chain anneals with at most; a descent to a local optimum follows, which only
        a budget ends. Without one, the same seed gives the same result on every machine.
    start
        Strategies to start from; by default data parallelism, the experts', OptCNN's (not for
        "paper") and a random one, as far as the batch allows; and "optcnn-coarse", "megatron",
        "pipeline", "interleaved", "3d", "vocabulary" and "wide-deep" where they are faster than
        data parallelism. What is found is never slower than any.
    dimensions
        Which kinds of dimensions may be split, of "sample", "attribute", "parameter" and
        "reduction"; all by default.
    space
        "dtensor" or "jax": what `flexlegion.export` can write for that without replacing anything;
        by default all that flexlegion runs.
    seed
        Decides all that is random.
    chains
        How many side by side; by default one a core, two without a budget of time, and one for
        "paper".
    options
        Of the annealing.
    search
        "annealing"; "paper", the Metropolis-Hastings algorithm as in section 6.2 of FlexFlow's
        paper; "placement", of whole operators only; or one that `flexlegion.register_search` named.
    most_micro_batches
        Choose their number, too: of the powers of two up to this one which divide the batch, the
        two with the fastest starts are searched, each with half of the budget. By default, their
        number is what `micro_batches` says.
    progress
        Whether to show a bar, on a terminal.
    **training
        How it is trained, see `flexlegion.simulate`.

    Returns
    -------
    Found
        Printed it tells the story; its `strategy`, or itself, goes to `Model.compile`; `save`
        writes it for others.

    Raises
    ------
    UserError
        If something does not exist or does not fit, or if nothing fits into memory.

    Examples
    --------
    >>> found = search("lenet", "p100x4", proposals=100)
    >>> found.iteration_time_ns <= found.data_parallel_time_ns
    True
    """
    starts_from = SEARCHES[search].starts
    for name, value in (("start", start), ("dimensions", dimensions), ("space", space)):
        if value is not None and not SEARCHES[search].chooses:
            raise UserError(
                f"'{name}' does not go with the search '{search}', which places whole operators "
                "anywhere, from starts of its own; leave it out"
            )
    begin = time.monotonic()
    limits = budget_of(budget, proposals)
    check_search(seed, chains)
    network = network_of(model, **training)  # whose code may name starts
    read = None if start is None else [s if s == "random" else read_strategy(s) for s in start]

    def case_of(network: Network) -> Case:
        setting = Setting.of(
            network,
            machine,
            costs=costs,
            profile_db=profile_db,
            dimensions=dimensions_of(dimensions),
            granularity=granularity_of(*(read or ())),
        )
        every = setting.problem
        if space is not None:
            setting = _restricted(setting, space)
        return Case(setting, *starts_of(read, every, seed, starts_from, setting.problem, prepare))

    def used() -> float:
        """The share of the budget; 0: it is not one of time."""
        return (time.monotonic() - begin) / limits.seconds if limits.seconds else 0.0

    found: list[Found] = []
    with ProgressBar("search", progress) as bar:

        def prepare(what: str) -> None:
            bar.show(min(1.0, used()), what)

        prepare("costs")
        if most_micro_batches is None:
            cases = [case_of(network)]
        else:
            cases = in_rounds(network, most_micro_batches, case_of, used)
        for number, (setting, starts, notes) in enumerate(cases):
            share = limits
            if limits.seconds is not None:  # of what the starts, and searches before, have left
                left = max(0.0, limits.seconds * (1 - used()))
                share = replace(limits, seconds=max(LEAST_SECONDS, left / (len(cases) - number)))

            def report(done: float, best_ns: int, phase: str = "", number: int = number) -> None:
                whole = used() or (number + done) / len(cases)
                bar.search(min(1.0, whole), best_ns, phase)

            task = SearchTask(setting.problem, starts, share, seed, chains, options, report)
            result = run_search(search, task)
            found.append(found_by(setting, result, limits, seed, search, notes, options))
            if result.interrupted:
                break
    return min(found, key=lambda its: its.iteration_time_ns)


def _restricted(setting: Setting, space: str) -> Setting:
    """The same question where only what a target of exports can express is asked for."""
    from flexlegion.exporters.space import check_training, target_of

    # A new problem, as searches choose from all splits that have ever been priced.
    problem = setting.problem
    target = target_of(space, len(problem.devices))
    check_training(setting.network.training, space)
    fewer = setting.network.problem(
        problem.topology, problem.costs, problem.dimensions, problem.granularity, target
    )
    return replace(setting, problem=fewer)


def dimensions_of(names: Sequence[str] | None) -> frozenset[DimKind]:
    """The kinds of dimensions that a search may split, by their names; None: all.

    Raises
    ------
    UserError
        If there is no such kind.
    """
    if names is None:
        return SPLIT
    if not names:
        raise UserError("no kind of dimension is named, so nothing could be split; name one")
    kinds = {kind.value: kind for kind in DimKind if kind in SPLIT}
    for name in names:
        if name not in kinds:
            raise unknown("kind of dimension", name, kinds)
    return frozenset(kinds[name] for name in names)


def found_by(
    setting: Setting,
    result: SearchResult,
    budget: Budget,
    seed: int,
    search: str = ANNEALING,
    notes: tuple[str, ...] = (),
    options: SearchOptions | None = None,
) -> Found:
    """What a search found, with what there is to compare it with."""
    found_ns = result.iteration_time_ns
    # In a space, a start is what of it can be said there.
    known = result.start_times_ns if setting.problem.space is None else {}
    references = {
        name: Reference(known[name], "" if known[name] else NO_MEMORY)
        if name in known
        else _reference(name, setting.problem)
        for name in REFERENCES
    }
    data, expert = (references[name].time_ns for name in REFERENCES)
    least_ns = found_ns if result.optimum else least_time(setting.problem).time_ns
    story = {
        "iteration_time_ns": found_ns,
        "data_parallel_time_ns": data,
        "expert_time_ns": expert,
        "speedup": data / found_ns if data else None,
        "speedup_over_expert": expert / found_ns if expert else None,
        "start": result.start,
        "start_times_ns": result.start_times_ns,
        "least_time_ns": least_ns,
        "gap": found_ns / max(1, least_ns) - 1,
        "optimum": result.optimum,
        "local_optimum": result.local_optimum,
        "interrupted": result.interrupted,
        "proposals": result.proposals,
    }
    found = setting.network.found(
        setting.about()
        | story
        | {
            "seed": seed,
            "chains": result.chains,
            "budget": {"seconds": budget.seconds, "proposals": budget.proposals},
            "trace": [list(point) for point in result.trace],
        }
        | _restriction(setting.problem)
        | ({} if search == ANNEALING else {"search": search})
        | ({} if options is None else {"options": asdict(options)})
    )
    strategy = result.strategy.with_origin("found", found)
    timeline = full(setting.problem, strategy)
    return Found(
        **(iteration_of(strategy, timeline) | story),
        untimed={name: its.reason for name, its in references.items() if its.time_ns is None},
        setting=setting,
        seconds=result.seconds,
        notes=notes,
        result=result,
    )


def _restriction(problem: Problem) -> dict[str, Any]:
    """Which kinds of dimensions were split, unless all, and in what space."""
    told: dict[str, Any] = {}
    if problem.dimensions != SPLIT:
        told["dimensions"] = [kind.value for kind in DimKind if kind in problem.dimensions]
    if problem.space is not None:
        told["space"] = problem.space.name
    return told


def _reference(name: str, problem: Problem) -> Reference:
    """A known strategy's iteration, or why it has no time: perhaps it cannot exist.

    A search that has used up its budget does not simulate for minutes what it has left out.
    """
    try:
        return reference(problem, named(name, problem), quickly=True)
    except UserError as e:
        return Reference(None, str(e))


def _counts(result: SearchResult) -> dict[str, int]:
    """What became of the proposals, over all chains."""
    total: Counter[str] = Counter()
    for states in result.states.values():
        for state in states:
            total.update(asdict(state))
    del total["best_time"], total["current_time"]
    return dict(total)
