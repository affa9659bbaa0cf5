"""Tuning: the strategy that is really the fastest for a network on the machine that runs.

It measures the network's operators (what the profile data base lacks), and by data parallelism what
training adds to these times. With that it searches, then trains for a moment with the best few
strategies found and with data parallelism, in rounds. Data parallelism stays unless another is
clearly faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

from flexlegion.analysis.result import Result
from flexlegion.analysis.setting import AnyModel, network_of
from flexlegion.base.arguments import typed
from flexlegion.base.errors import UserError
from flexlegion.console.blocks import Block
from flexlegion.console.progress import ProgressBar
from flexlegion.cost.measured import AS_MEASURED, Calibration
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.known_strategies import AnyStrategy, named, read_strategy
from flexlegion.machine.running import running_machine
from flexlegion.networks.network import Network
from flexlegion.objective.precision import check_used
from flexlegion.objective.training import TrainingOptions
from flexlegion.process.ending import again
from flexlegion.profiling.local import local_topology
from flexlegion.profiling.storage import check_stored
from flexlegion.profiling.tasks import all_requests
from flexlegion.report.timelines import memory_excess
from flexlegion.report.tuning import described
from flexlegion.searches.budget import check_search, seconds_of
from flexlegion.searches.mcmc import search
from flexlegion.searches.memory import where_needed
from flexlegion.searches.options import Budget
from flexlegion.searches.result import SearchResult
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.strategy import ResolvedStrategy, Strategy
from flexlegion.tuner.calibration import calibration_by
from flexlegion.tuner.disturbances import Watch
from flexlegion.tuner.duel import Duel, Rules
from flexlegion.tuner.rounds import Estimation, Limits, Rest
from flexlegion.tuner.trials import (
    KNOWN,
    Trial,
    problem_of,
    profile,
    profile_runtime,
    resolvable,
    run_rounds,
)

BASELINE = "data parallelism"
# Ranks have to find the same, so where there are several, time is not what ends the search.
PROPOSALS_OF_RANKS = 20_000
CALIBRATING_ROUNDS = 7


@dataclass(frozen=True, repr=False)
class TuneResult(Result):
    """What `tune` found; printed, it is a table, and the reason of the choice.

    Attributes
    ----------
    strategy : ResolvedStrategy
        The fastest; `Model.compile` takes it, or the result itself.
    chosen : str
        Its name among the finalists.
    reason : str
        Why it was chosen, in a sentence.
    iteration_time_ns, measured_iteration_time_ns : int
        Of its iteration, simulated and measured.
    finalists : list of dict
        For each strategy that was tried, the first of which is what the others had to beat:
        ``name``, ``iteration_time_ns`` and ``measured_iteration_time_ns``; for the others also
        ``speedups`` (in each round, the first one's time over this one's), ``rounds``, ``won``,
        ``median_speedup``, its ``interval`` (None after too few rounds), and the ``verdict``:
        "faster", "out", or "undecided".
    confidence, gain : float
        With which all intervals hold; by which share a strategy had to be faster.
    rounds : int
        How many there were.
    machine : str
        The devices.
    seed : int
        Of everything random.
    tasks_measured : int
        How many the profile data base lacked.
    calibration : Calibration
        What training adds to tasks' times.
    rest : Rest
        Whether the machine was at rest while strategies trained.
    proposals, seconds : int, float
        Of the search.
    priced_by : dict
        How many of the chosen strategy's tasks each cost model priced.
    network : Network
        What was tuned.
    rules : Rules
        Of the trials, as they were in force.
    budget : Budget
        Of the search, likewise.
    """

    strategy: ResolvedStrategy
    chosen: str
    reason: str
    iteration_time_ns: int
    measured_iteration_time_ns: int
    finalists: list[dict[str, Any]]
    confidence: float
    gain: float
    rounds: int
    machine: str
    seed: int
    tasks_measured: int
    calibration: Calibration
    rest: Rest
    proposals: int
    seconds: float
    priced_by: dict[str, int]
    network: Network
    rules: Rules
    budget: Budget

    def save(self, path: str | Path) -> None:
        """Write the strategy as a file, which training and all commands take.

        Raises
        ------
        UserError
            If it cannot be written there.
        """
        self.strategy.save(path)

    def facts(self) -> dict[str, Any]:
        return self.network.about() | {
            "machine": self.machine,
            "seed": self.seed,
            "iteration_time_ns": self.iteration_time_ns,
            "measured_iteration_time_ns": self.measured_iteration_time_ns,
            "chosen": self.chosen,
            "reason": self.reason,
            "baseline": self.finalists[0]["name"],
            "finalists": self.finalists,
            "confidence": self.confidence,
            "gain": self.gain,
            "rounds": self.rounds,
            "rules": asdict(self.rules),
            "budget": asdict(self.budget),
            "tasks_measured": self.tasks_measured,
            "calibration": asdict(self.calibration),
            "rest": self.rest.facts(),
            "proposals": self.proposals,
            "seconds": self.seconds,
            "priced_by": self.priced_by,
        }

    def blocks(self) -> Sequence[Block]:
        return described(f"{self.network} on {self.machine}", self.facts())


@typed
def tune(
    model: AnyModel,
    x: Any = None,
    y: Any = None,
    *,
    budget: str | float = "10s",
    start: Sequence[AnyStrategy] | None = None,
    finalists: int = 3,
    rounds: int = Rules.rounds,
    max_rounds: int = Rules.max_rounds,
    trial_budget: str | float = Rules.seconds,
    gain: float = Rules.gain,
    confidence: float = Rules.confidence,
    profile_db: str | None = None,
    seed: int = 0,
    progress: bool = True,
    on_found: Callable[[ResolvedStrategy], None] | None = None,
    **training: Unpack[TrainingOptions],
) -> TuneResult:
    """Find the strategy that is really the fastest for a model on the machine that runs.

    It times the model's operators, searches, and trains for a moment with the best strategies found
    and with data parallelism, in rounds, until it is decided which is the fastest: data
    parallelism, unless another is clearly faster. Runs under the legate command, as training does.

    Parameters
    ----------
    model
        Any, compiled or not, or the name of one as `load_model` takes it; nothing about it changes.
    x, y
        What to try strategies on, as `Model.fit` takes them; made up unless given.
    budget
        Of the search: seconds, or a text such as "30s" or "2m".
    start
        Strategies that the search starts from in place of the known ones: names, those of your own
        included, files, or strategies. Each is tried as it is, too.
    finalists
        How many of the strategies found are tried.
    rounds, max_rounds
        Of trials, at least and at most.
    trial_budget
        When to begin no further round beyond `rounds`.
    gain
        By which share a strategy has to be faster than data parallelism.
    confidence
        With which probability none is chosen that is not.
    profile_db
        The profile data base's file, where measured times are kept; the user's own unless given.
    seed
        Decides all that is random.
    progress
        Whether to show it, on terminals.
    on_found
        Called with the fastest strategy as simulated when the search has ended, also by a signal,
        before any is tried: what can be kept if tuning is interrupted.
    **training
        How it is trained, see `flexlegion.simulate`.

    Returns
    -------
    TuneResult
        Its `strategy` is for `Model.compile`; printed, it is a table with the reason.

    Raises
    ------
    UserError
        If an argument is wrong, or nothing fits into the machine's memory.

    Examples
    --------
    >>> result = tune(model, x, y)
    >>> model.compile("adam", strategy=result.strategy)
    """
    rules = Rules(
        gain, confidence, rounds, max_rounds, seconds_of(trial_budget, "the trials' budget")
    )
    limits = Budget(seconds_of(budget))
    if finalists < 1:
        raise UserError(f"there has to be at least 1 finalist, not {finalists}")
    check_search(seed, None)
    network = network_of(model, **training)  # whose code may name starts
    given = None if start is None else [read_strategy(one) for one in start]
    machine = running_machine()
    check_used(network.training.precision, machine.devices.names, "this run")
    check_stored(network.training.storage, machine.devices.names)
    if machine.ranks > 1:
        limits = Budget(seconds=None, proposals=PROPOSALS_OF_RANKS)
    shown = progress and machine.rank == 0
    options: dict[str, Any] = {
        "data": None if x is None else (x, y),
        "seed": seed,
    }
    with ProfileDB(profile_db) as db:
        topology = local_topology(db)
        first = problem_of(network, topology, db)
        _given(first, given or ())  # mistakes show before anything is measured
        # Early, for it would also show that something is wrong with the data.
        trial = _calibrating(network, first, options)
        profile_runtime(topology, db)
        measured = profile(all_requests(network.graph, topology), network, topology, db, shown)
        calibration = AS_MEASURED
        if trial is not None and trial.timeline is not None:
            calibration = calibration_by(
                trial.strategy, trial.measured_ns, trial.timeline, network, topology, db
            )
        problem = problem_of(network, topology, db, calibration)
        with ProgressBar("search", shown) as bar:
            own = _given(problem, given or ())
            starts = _with_data(problem, own) if own else _starts(problem)
            result = search(problem, starts, limits, seed, progress=bar.search)
        if on_found is not None:
            about = {"machine": str(problem.devices), "seed": seed}
            about["iteration_time_ns"] = result.iteration_time_ns
            on_found(result.strategy.with_origin("found", network.found(about)))
        if result.interrupted:
            raise again(result.ended_by)
        trials = _finalists(problem, result, finalists, own)
        duel = Duel(trials[0].name, [trial.name for trial in trials[1:]], rules)
        with Watch() as watch, ProgressBar("training", shown) as bar:
            run_rounds(
                trials,
                duel,
                network,
                problem,
                **options,
                progress=lambda done: bar.steps(done, rules.max_rounds),
            )
        rest = watch.rest(trials[0].seconds)
    return _result(
        network, problem, limits, result, trials, duel, measured, calibration, rest, seed
    )


def _starts(problem: Problem) -> dict[str, ResolvedStrategy]:
    return where_needed(problem, resolvable(KNOWN, problem))


def _given(problem: Problem, read: Sequence[str | Strategy]) -> dict[str, ResolvedStrategy]:
    """The strategies that the caller gave, by name.

    Raises
    ------
    UserError
        If one does not fit the network or into the machine's memory.
    """
    given = {}
    for spec in read:
        strategy = named(spec, problem)
        excess = memory_excess(strategy, full(problem, strategy))
        if excess is not None:
            raise UserError(f"{strategy.source}: {excess}")
        given[spec if isinstance(spec, str) else strategy.source] = strategy
    return given


def _with_data(
    problem: Problem, given: Mapping[str, ResolvedStrategy]
) -> dict[str, ResolvedStrategy]:
    """Data parallelism, with which all others are compared, ahead of the strategies given."""
    return where_needed(problem, resolvable(["data"], problem)) | dict(given)


def _calibrating(network: Network, problem: Problem, options: dict[str, Any]) -> Trial | None:
    """Training with the first known strategy that fits into memory, if one does."""
    for strategy in _starts(problem).values():
        timeline = full(problem, strategy)
        if memory_excess(strategy, timeline) is None:
            trial = Trial("calibrating", strategy, timeline.iteration_time_ns)
            few = Estimation(trial.name, [], Limits(CALIBRATING_ROUNDS, CALIBRATING_ROUNDS))
            run_rounds([trial], few, network, problem, **options, record=True)
            return trial
    return None


def _finalists(
    problem: Problem,
    result: SearchResult,
    number: int,
    given: Mapping[str, ResolvedStrategy],
) -> list[Trial]:
    """Data parallelism, where batch and memory allow it, what was given, the best few found.

    Of those that are simulated to take equally long, as mirror images do, one.
    """
    finalists = []
    data_ns = result.start_times_ns.get("data")
    if data_ns is not None:
        finalists.append(Trial(BASELINE, resolvable(["data"], problem)["data"], data_ns))
    for name, strategy in given.items():
        time_ns = full(problem, strategy).iteration_time_ns
        if all(f.strategy != strategy for f in finalists):
            finalists.append(Trial(f"'{name}' as it is", strategy, time_ns))
    most = len(finalists) + number - (not finalists)
    for start, (strategy, time_ns) in result.found.items():
        known = any(f.simulated_ns == time_ns for f in finalists)
        if not known and len(finalists) < most:
            finalists.append(Trial(f"found from '{start}'", strategy, time_ns))
    return finalists


def _result(
    network: Network,
    problem: Problem,
    limits: Budget,
    result: SearchResult,
    trials: Sequence[Trial],
    duel: Duel,
    measured: int,
    calibration: Calibration,
    rest: Rest,
    seed: int,
) -> TuneResult:
    [chosen] = [trial for trial in trials if trial.name == duel.chosen]
    machine = str(problem.devices)
    found = {
        "machine": machine,
        "seed": seed,
        "iteration_time_ns": chosen.simulated_ns,
        "measured_iteration_time_ns": chosen.measured_ns,
        "measured_first_finalist_time_ns": trials[0].measured_ns,
    }
    rows = [
        {
            "name": trial.name,
            "iteration_time_ns": trial.simulated_ns,
            "measured_iteration_time_ns": trial.measured_ns,
        }
        | (duel.standings[trial.name].facts() if trial.name in duel.standings else {})
        for trial in trials
    ]
    return TuneResult(
        strategy=chosen.strategy.with_origin("tuned", network.found(found)),
        chosen=chosen.name,
        reason=duel.reason,
        iteration_time_ns=chosen.simulated_ns,
        measured_iteration_time_ns=chosen.measured_ns,
        finalists=rows,
        confidence=duel.rules.confidence,
        gain=duel.rules.gain,
        rounds=duel.rounds,
        machine=machine,
        seed=seed,
        tasks_measured=measured,
        calibration=calibration,
        rest=rest,
        proposals=result.proposals,
        seconds=result.seconds,
        priced_by=dict(problem.priced_by(chosen.strategy)),
        network=network,
        rules=duel.rules,
        budget=limits,
    )
