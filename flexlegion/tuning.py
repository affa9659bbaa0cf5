"""Tuning: the strategy that is really the fastest for a network on the machine that runs.

It measures the network's operators (what the profile data base lacks), and by data parallelism what
training adds to these times. With that it searches, then trains for a moment with the best few
strategies found and with data parallelism, in rounds. Data parallelism stays unless another is
clearly faster.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flexlegion.cost.measure import all_requests
from flexlegion.cost.measured import AS_MEASURED, Calibration
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.errors import UserError
from flexlegion.local import local_topology
from flexlegion.model import Model
from flexlegion.network import Network
from flexlegion.optimizers import Optimizer
from flexlegion.precision import DEFAULT, check_used
from flexlegion.problem import Problem
from flexlegion.report.progress import ProgressBar
from flexlegion.report.timelines import memory_excess
from flexlegion.report.tuning import described
from flexlegion.runtime.machine import running_machine
from flexlegion.searches.budget import seconds_of
from flexlegion.searches.mcmc import Budget, SearchResult, search
from flexlegion.simulator import full
from flexlegion.strategy import Strategy
from flexlegion.tools.calibration import calibration_by
from flexlegion.tools.duel import Duel, Rules
from flexlegion.tools.trials import (
    Data,
    Trial,
    problem_of,
    profile,
    resolvable,
    run_duel,
    run_trials,
)
from flexlegion.topology import Topology

STARTS = ("data", "single", "model", "expert")
BASELINE = "data parallelism"
# Ranks have to find the same, so where there are several, time is not what ends the search.
PROPOSALS_OF_RANKS = 20_000


@dataclass(frozen=True)
class TuneResult:
    """What tuning found; printed, it is a table and the reason of the choice.

    Attributes
    ----------
    strategy : Strategy
        The fastest, for `Model.compile`.
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
    proposals, seconds : int, float
        Of the search.
    priced_by : dict
        How many of the chosen strategy's tasks each cost model priced.
    network : Network
        What was tuned.
    """

    strategy: Strategy
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
    proposals: int
    seconds: float
    priced_by: dict[str, int]
    network: Network

    def save(self, path: str | Path) -> None:
        """Write the strategy as a file, which training and all commands take.

        Raises
        ------
        UserError
            If it cannot be written there.
        """
        self.strategy.save(path)

    def facts(self) -> dict[str, Any]:
        """For JSON: times in ns."""
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
            "tasks_measured": self.tasks_measured,
            "calibration": asdict(self.calibration),
            "proposals": self.proposals,
            "seconds": self.seconds,
            "priced_by": self.priced_by,
        }

    def to_json(self) -> str:
        """`facts` as a line of JSON."""
        return json.dumps(self.facts(), allow_nan=False)

    def __str__(self) -> str:
        return described(f"{self.network} on {self.machine}", self.facts())


def tune(
    model: Model,
    x: Any = None,
    y: Any = None,
    *,
    loss: Any = None,
    optimizer: str | Optimizer = "sgd",
    precision: str = DEFAULT,
    budget: str | float = "10s",
    finalists: int = 3,
    rounds: int = Rules.rounds,
    max_rounds: int = Rules.max_rounds,
    trial_budget: str | float = Rules.seconds,
    gain: float = Rules.gain,
    confidence: float = Rules.confidence,
    profile_db: str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> TuneResult:
    """Find the strategy that is really the fastest for a model on the machine that runs.

    It times the model's operators, searches, and trains for a moment with the best strategies found
    and with data parallelism, in rounds, until it is decided which is the fastest: data
    parallelism, unless another is clearly faster. Runs under the legate command, as training does.

    Parameters
    ----------
    model
        Any, compiled or not; nothing about it changes.
    x, y
        What to try strategies on, as `Model.fit` takes them; made up unless given.
    loss
        As `Model.compile` takes it; by default what the model itself says (``model.loss``), or
        cross-entropy where its outputs are softmaxes.
    optimizer, precision
        As `Model.compile` takes them.
    budget
        Of the search: seconds, or a text such as "30s" or "2m".
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
    return tune_network(
        Network.of(model, loss, optimizer, precision),
        data=None if x is None else (x, y),
        budget=Budget(seconds_of(str(budget), "budget")),
        finalists=finalists,
        rules=Rules(
            gain, confidence, rounds, max_rounds, seconds_of(str(trial_budget), "trial_budget")
        ),
        profile_db=profile_db,
        seed=seed,
        shown=progress,
    )


def tune_network(
    network: Network,
    *,
    data: Data | None = None,
    budget: Budget | None = None,
    finalists: int = 3,
    rules: Rules | None = None,
    profile_db: str | None = None,
    seed: int = 0,
    shown: bool = True,
) -> TuneResult:
    """Find the fastest strategy for a network on the running machine.

    Parameters
    ----------
    network
        What is to be trained.
    data
        x and y to try strategies on, as `Model.fit` takes them; made up unless given.
    budget
        Of the search.
    finalists
        How many of the strategies found are tried.
    rules
        When trials end, and what it takes to win.
    profile_db
        The profile data base's file; the user's own unless given.
    seed
        Decides all that is random.
    shown
        Whether to show progress.

    Raises
    ------
    UserError
        If a number is out of range, or nothing fits into the machine's memory.
    """
    rules = rules or Rules()
    if finalists < 1:
        raise UserError(f"there has to be at least 1 finalist, not {finalists}")
    if seed < 0:
        raise UserError(f"the seed has to be at least 0, but is {seed}")
    network.graph.require_kernels()
    machine = running_machine()
    check_used(network.precision, machine.devices.names, "this run")
    shown = shown and machine.rank == 0
    options: dict[str, Any] = {"data": data, "seed": seed, "shown": shown}
    with ProfileDB(profile_db) as db:
        topology = local_topology(db)
        requests = all_requests(network.graph, topology)
        measured = profile(requests, network, topology, db, shown)
        calibration = _calibrated(network, topology, db, rules.rounds, options)
        problem = problem_of(network, topology, db, calibration)
        if machine.ranks > 1:
            budget = Budget(seconds=None, proposals=PROPOSALS_OF_RANKS)
        with ProgressBar("search", shown) as bar:
            result = search(
                problem, _starts(problem), budget or Budget(), seed, progress=bar.search
            )
        if result.interrupted:
            raise KeyboardInterrupt
        trials = _finalists(problem, result, finalists)
        duel = run_duel(trials, network, problem, rules, **options)
    return _result(network, problem, result, trials, duel, measured, calibration, seed)


def _starts(problem: Problem) -> dict[str, Strategy]:
    return resolvable(STARTS, problem)


def _calibrated(
    network: Network, topology: Topology, db: ProfileDB, rounds: int, options: dict[str, Any]
) -> Calibration:
    """What training adds, from the first known strategy that fits into memory."""
    problem = problem_of(network, topology, db)
    for strategy in _starts(problem).values():
        timeline = full(problem, strategy)
        if memory_excess(strategy, timeline) is None:
            trial = Trial("calibrating", strategy, timeline.iteration_time_ns)
            run_trials([trial], network, problem, rounds, **options, busy=True)
            return calibration_by(trial, network, topology, db)
    return AS_MEASURED


def _finalists(problem: Problem, result: SearchResult, number: int) -> list[Trial]:
    """Data parallelism, where batch and memory allow it, then the best few that were found.

    Of those that are simulated to take equally long, as mirror images do, one.
    """
    finalists = []
    data_ns = result.start_times_ns.get("data")
    if data_ns is not None:
        finalists.append(Trial(BASELINE, resolvable(["data"], problem)["data"], data_ns))
    for start, (strategy, time_ns) in result.found.items():
        known = any(f.simulated_ns == time_ns for f in finalists)
        if not known and len(finalists) <= number:
            finalists.append(Trial(f"found from '{start}'", strategy, time_ns))
    return finalists


def _result(
    network: Network,
    problem: Problem,
    result: SearchResult,
    trials: Sequence[Trial],
    duel: Duel,
    measured: int,
    calibration: Calibration,
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
        strategy=Strategy(dict(chosen.strategy), "tuned", network.found(found)),
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
        proposals=result.proposals,
        seconds=result.seconds,
        priced_by=dict(problem.priced_by(chosen.strategy)),
        network=network,
    )
