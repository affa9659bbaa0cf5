"""Strategies on the running Legion: priced by measured times, and tried in training for a moment.

Every rank makes the same calls in the same order.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.console.progress import ProgressBar
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.measured import AS_MEASURED, Calibration, MeasuredCosts
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.graph.tensor import Tensor
from flexlegion.known_strategies import resolve
from flexlegion.machine.running import running_machine
from flexlegion.machine.topology import Topology
from flexlegion.networks.network import Network
from flexlegion.objective.precision import PEAKS
from flexlegion.profiling.tasks import TaskRequest, measure, measure_linears, one_of_each_model
from flexlegion.profiling.timing import REPEATS, Repeats
from flexlegion.report.measured import MeasuredTimeline
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.strategy import ResolvedStrategy
from flexlegion.tuner.runtime_costs import measure_runtime, software
from flexlegion.tuner.timed import Data, Running, data_for, slowest

# Programs are held at the same time as long as they take at most this share of a memory.
MEMORY_SHARE = 0.5
OTHERS_A_REFERENCE = 4  # a round trains the reference once more for so many others
RECORDED_ITERATIONS = 30  # at most, in which it is noted when tasks run


@dataclass
class Trial:
    """A strategy that is measured.

    Parameters
    ----------
    name
        For people.
    strategy
        A configuration for every operator.
    simulated_ns
        An iteration's simulated time.
    seconds
        Measured time of an iteration, in each round that it took part in.
    timeline
        When its tasks ran in some iterations, if that was wanted.
    """

    name: str
    strategy: ResolvedStrategy
    simulated_ns: int
    seconds: list[float] = field(default_factory=list)
    timeline: MeasuredTimeline | None = None

    @property
    def median(self) -> float:
        """Seconds an iteration."""
        return statistics.median(self.seconds)

    @property
    def measured_ns(self) -> int:
        """The same in whole nanoseconds."""
        return round(1e9 * self.median)


class Rounds(Protocol):
    """Decides who trains in the next round, and when no round is to follow."""

    rounds: int  # so far

    @property
    def taking_part(self) -> list[str]:
        """Of the next round; the first takes part in all."""

    def add(self, seconds: Mapping[str, float]) -> None:
        """Note a round: what an iteration took each of `taking_part`."""

    def over(self, seconds: float) -> bool:
        """Whether no round is to follow, after so many seconds."""


def problem_of(
    network: Network,
    topology: Topology,
    db: ProfileDB,
    calibration: Calibration = AS_MEASURED,
) -> Problem:
    """The network on this machine, with the times that the data base has now."""
    costs = MeasuredCosts(
        db,
        AnalyticCosts(PEAKS[network.training.precision]),
        optimizer=network.training.optimizer.type,
        calibration=calibration,
        precision=network.training.precision,
        software=software(running_machine()),
    )
    return network.problem(topology, costs)


def profile(
    requests: Sequence[TaskRequest],
    network: Network,
    topology: Topology,
    db: ProfileDB,
    shown: bool = True,
    repeats: Repeats = REPEATS,
) -> int:
    """Measure the tasks, updates, loads and sums that the data base lacks; how many those were."""
    with ProgressBar("measuring operators", shown) as bar:
        count = measure(requests, db, bar.steps, repeats, network.training.precision)
    return count + sum(
        measure_linears(device, db, network.training.optimizer, repeats, network.training.precision)
        for device in one_of_each_model(topology)
    )


def profile_runtime(topology: Topology, db: ProfileDB) -> int:
    """Measure what the runtime takes, where the data base lacks it; of how many device models."""
    return sum(measure_runtime(device, topology, db) for device in one_of_each_model(topology))


# That need no costs: what is trained beside what a search finds. Without micro-batches there is no
# pipeline.
KNOWN = ("data", "single", "model", "expert", "pipeline")


def resolvable(names: Iterable[str], problem: Problem) -> dict[str, ResolvedStrategy]:
    """Built-in strategies by name, without those that this graph or batch does not allow."""
    strategies = {}
    for name in names:
        try:
            strategies[name] = resolve(name, problem.graph, problem.devices)
        except UserError:
            continue  # a batch smaller than the number of devices, say
    return strategies


def run_rounds(
    trials: Sequence[Trial],
    judge: Rounds,
    network: Network,
    problem: Problem,
    *,
    data: Data | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    between: Callable[[int], None] | None = None,
    record: bool = False,
) -> None:
    """Train in rounds, with each strategy for a moment, in an order drawn anew each time.

    Parameters
    ----------
    trials
        They get their `seconds`. The first takes part in every round; how long a round trains each
        is up to how many iterations of the first fit into it.
    judge
        Decides who takes part, and for how long this goes on; the same on all ranks.
    network
        What is trained.
    problem
        Says what memory strategies need.
    data
        What it is trained on, x and y; made up unless given. Of sources and loaders, the beginning.
    seed
        Decides made-up data, weights, and the order in each round.
    progress, between
        Called after each round with how many there were; the second one's time does not count.
    record
        Whether trials get their `timeline` in the end, too.
    """
    by_name = {trial.name: trial for trial in trials}
    programs = Programs(network, problem, data, seed)
    rng = np.random.default_rng(seed)
    begin = time.perf_counter()
    iterations = programs.of(trials[0]).iterations()
    while not judge.over(slowest(time.perf_counter() - begin)):
        first, *others = judge.taking_part
        # What all are compared with is worth being measured more than once.
        several = [first] * (1 + len(others) // OTHERS_A_REFERENCE)
        tried: dict[str, list[float]] = {name: [] for name in (first, *others)}
        for name in rng.permutation([*several, *others]).tolist():
            tried[name].append(programs.of(by_name[name]).train(iterations))
        seconds = {name: statistics.mean(times) for name, times in tried.items()}
        for name, its in seconds.items():
            by_name[name].seconds.append(its)
        judge.add(seconds)
        if progress is not None:
            progress(judge.rounds)
        if between is not None:
            paused = time.perf_counter()
            between(judge.rounds)
            begin += time.perf_counter() - paused
    if record:
        for trial in trials:
            count = min(iterations + 1, RECORDED_ITERATIONS)
            trial.timeline = programs.of(trial).recorded(count)
    programs.close()


class Programs:
    """Strategies' programs, as many of them at the same time as fit into the memories.

    Parameters
    ----------
    network, problem, data, seed
        As of `run_rounds`.
    """

    def __init__(
        self, network: Network, problem: Problem, data: Data | None = None, seed: int = 0
    ) -> None:
        self._data, self._samples = data_for(network, data, seed)
        self._arrays: Mapping[Tensor, npt.NDArray[Any]] | None = None
        self._network, self._problem, self._seed = network, problem, seed
        self._held: dict[str, tuple[Trial, Running]] = {}  # the one that was used last is the last

    def of(self, trial: Trial) -> Running:
        """A strategy's program; those that were not used for longest make room for it."""
        _, running = self._held.pop(trial.name, (trial, None))
        while running is None and self._held and not self.fit([*self._trials(), trial]):
            self._held.pop(next(iter(self._held)))[1].close()
        if running is None:
            running = Running(trial.strategy, self._network, self._seed)
            if self._arrays is None:  # the same for all
                self._arrays = running.arrays(self._data, self._samples)
            running.warm_up(self._arrays)
        self._held[trial.name] = (trial, running)
        return running

    def close(self) -> None:
        """End all programs."""
        for _, running in self._held.values():
            running.close()
        self._held.clear()

    def fit(self, trials: Sequence[Trial]) -> bool:
        """Whether strategies fit into the memories together."""
        needed: Counter[str] = Counter()
        for trial in trials:
            needed.update(full(self._problem, trial.strategy).allocated_bytes)
        capacity = {d.memory: MEMORY_SHARE * d.memory_bytes for d in self._problem.topology.devices}
        return all(size <= capacity[memory] for memory, size in needed.items())

    def _trials(self) -> list[Trial]:
        return [trial for trial, _ in self._held.values()]
