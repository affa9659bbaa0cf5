"""The strategies that a search starts from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flexlegion.base.errors import DoesNotApply, UserError
from flexlegion.known_strategies import AnyStrategy, unpriced
from flexlegion.report.timelines import time_excess
from flexlegion.searches.memory import where_needed
from flexlegion.searches.registry import SPECIAL
from flexlegion.sim.problem import MAX_TIME_NS, Problem
from flexlegion.sim.simulator import LARGE, Judged, full, judge, most_judged
from flexlegion.strategy.configuration import SPLIT
from flexlegion.strategy.strategy import ResolvedStrategy

# Strategies of a large model on 4,096 GPUs take some 5 GB each while they are looked at.
MOST_MEMORIES = 4096
# So many devices, times micro-batches, have never made more tasks than can be simulated: in one
# piece, iterations on 64 have up to 15 million.
SMALL = 128
# Of a random strategy, everything moves between all devices; OptCNN's costs are of all pairs.
MOST_DEVICES = {"random": 64, "optcnn": 512, "optcnn-coarse": 256}
# OptCNN's strategies know no stages, so much moves between all devices in each micro-batch. Of
# Llama-3 70B on 512 GPUs in 64 micro-batches, the costs took 20 s of a core, and the strategy had
# too many tasks to be simulated. Where there are more micro-batches than that, so many devices:
MANY_ROUNDS, MOST_IN_ROUNDS = 32, 256
# A start that takes seconds to simulate is left out if it is so many times slower than another one,
# unless it was asked for.
TOO_SLOW = 2.0


def starts_of(
    specs: Sequence[AnyStrategy] | None,
    every: Problem,
    seed: int,
    default: Sequence[str],
    problem: Problem | None = None,
    tell: Callable[[str], None] | None = None,
) -> tuple[dict[str, ResolvedStrategy], tuple[str, ...]]:
    """The strategies to start from, by name, equal ones once; and what is to be said of others.

    Parameters
    ----------
    specs
        Names, files, strategies; None: those of `default` that can exist.
    every
        Graph, machine and costs.
    seed
        Of ``random``.
    default
        Names.
    problem
        The same where the search has to stay within a space, as the starts then have to.
    tell
        Called with what is being prepared.

    Raises
    ------
    UserError
        If the machine is too large, if a start that was asked for cannot be read or does not fit,
        or if every one has a task that takes longer than is simulated.
    """
    check_size(every)
    problem = problem or every
    starts: dict[str, ResolvedStrategy] = {}
    first: Judged | None = None  # of the starts, once somebody asked
    notes = []
    for spec in default if specs is None else specs:
        if specs is None and _is_too_large(str(spec), problem):
            continue
        asked = f"random:{seed}" if spec == "random" else spec
        if tell is not None:
            tell(f"start {asked if isinstance(asked, str) else 'of your own'}")
        try:
            strategy = unpriced(asked, every)
            _check_dimensions(strategy, every)  # ahead of the cost table, which has candidates
            every.price(strategy)
            strategy = _within(strategy, every, problem)
        except UserError as e:
            if specs is not None:
                raise
            if not isinstance(e, DoesNotApply):
                notes.append(f"no start from '{spec}': {e}")
            continue
        if specs is None and spec in SPECIAL and starts:
            first = first or judge(problem, next(iter(starts.values())), 0, "bundles")
            if not _pays(strategy, first, problem):
                continue
        name = asked if isinstance(asked, str) else strategy.source
        twin = next((other for other, same in starts.items() if same == strategy), None)
        if twin is None:
            starts[name] = strategy
        elif specs is not None:
            notes.append(f"start '{name}' is the same strategy as '{twin}'")
    if not starts:
        raise UserError("there is no strategy to start from; give one, or leave 'start' out")
    if specs is None and problem.space is None:
        first = first or judge(problem, next(iter(starts.values())), 0, "bundles")
        fitting = where_needed(problem, starts, first)
        notes += [
            f"no start from '{name}': it does not fit into memory"
            for name in starts
            if not any(f"{other}+".startswith(f"{name}+") for other in fitting)
        ]
        starts = fitting
    # One that does not take too long is enough, so in general one is looked at.
    fast = first is not None and first.time_ns is not None and first.time_ns < MAX_TIME_NS
    if fast and len(problem.devices) * problem.graph.micro_batches <= SMALL:
        return starts, tuple(notes)
    left, large = _simulated(starts, problem, fast, asked_for=specs is not None)
    return left, (*notes, *large)


def _is_too_large(start: str, problem: Problem) -> bool:
    """Whether a start would take longer to make, or to simulate, than it is worth."""
    most = MOST_DEVICES.get(start, MOST_MEMORIES)
    if start == "optcnn" and problem.graph.micro_batches > MANY_ROUNDS:
        most = MOST_IN_ROUNDS
    return len(problem.devices) > most


def _simulated(
    starts: dict[str, ResolvedStrategy], problem: Problem, fast: bool, asked_for: bool
) -> tuple[dict[str, ResolvedStrategy], list[str]]:
    """The starts that can be simulated, and what is to be said of the others.

    `fast`: one of them is known not to take longer than is simulated. `asked_for`: slow ones stay.
    """
    left, notes = {}, []
    slow: ResolvedStrategy | None = None
    judged = {name: judge(problem, its, 0, "bundles") for name, its in starts.items()}
    fastest = min(
        (name for name, its in judged.items() if its.time_ns and its.can_be_simulated),
        key=lambda name: judged[name].time_ns or 0,
        default=None,
    )
    for name, strategy in starts.items():
        its = judged[name]
        times = (its.time_ns or 0) / (judged[fastest].time_ns or 1) if fastest else 0
        if its.can_be_simulated and (asked_for or times <= TOO_SLOW or its.all_tasks < LARGE):
            left[name] = strategy
        elif its.can_be_simulated:
            notes.append(
                f"no start from '{name}': an iteration takes some {times:.0f} times as long as "
                f"from '{fastest}', and more than {LARGE:,} tasks and transfers to simulate"
            )
        else:
            number = "too many" if its.too_large else f"{its.all_tasks:,}"
            notes.append(
                f"no start from '{name}': an iteration has {number} tasks and transfers; no more "
                f"than {most_judged():,} are simulated"
            )
        fast = fast or (its.time_ns is not None and its.time_ns < MAX_TIME_NS)
        if its.time_ns is not None and name in left:
            slow = strategy
    if not left:
        raise UserError(
            f"no strategy to start from can be simulated: {notes[0]}; take fewer devices, larger "
            "layers or fewer micro-batches"
        )
    # On a machine on which all of them take too long, a search would tell that after its budget.
    excess = None if fast or slow is None else time_excess(full(problem, slow))
    if excess is not None:
        raise UserError(excess)
    return left, notes


def check_size(problem: Problem) -> None:
    """Raise `UserError` if the machine is too large for searches."""
    memories = len(problem.memories)
    if memories > MOST_MEMORIES:
        raise UserError(
            f"machine {problem.topology.name} has {memories:,} memories of devices, but at most "
            f"{MOST_MEMORIES:,} can be searched for, as a search simulates many strategies side by "
            "side; take fewer nodes of it, or simulate known strategies there"
        )


def _check_dimensions(strategy: ResolvedStrategy, problem: Problem) -> None:
    """Raise `UserError` if a strategy splits what its search leaves whole."""
    for operator in problem.facts.trained:
        if operator.looks_up:
            continue
        for dim, degree in zip(operator.dims, strategy[operator.name].degrees, strict=True):
            if degree > 1 and dim.kind in SPLIT - problem.dimensions:
                raise UserError(
                    f"{strategy.source}: operator '{operator.name}' splits dimension '{dim.name}' "
                    f"of kind {dim.kind.value}, which this search leaves whole"
                )


def _pays(strategy: ResolvedStrategy, first: Judged, problem: Problem) -> bool:
    """Whether it is worth a share of the budget: faster than the first start, or alone fits.

    Bundles of transfers tell that well enough.
    """
    limit_ns = first.time_ns - 1 if first.time_ns else 0
    return judge(problem, strategy, limit_ns, "bundles", simulable=True).time_ns is not None


def _within(strategy: ResolvedStrategy, every: Problem, problem: Problem) -> ResolvedStrategy:
    """A strategy in the space of a problem, made of one for the problem without that."""
    if problem.space is None:
        return strategy
    from flexlegion.exporters.space import target_of, within

    target = target_of(problem.space.name, len(problem.devices))
    return within(every, strategy, target, in_order=True)[0]
