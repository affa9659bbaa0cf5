"""Strategies on the running Legion: priced by measured times, and tried in training for a moment.

Every rank makes the same calls in the same order.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.binding import Binding
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.measure import TaskRequest, measure, measure_linears, one_of_each_model
from flexlegion.cost.measured import AS_MEASURED, Calibration, MeasuredCosts
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.data.made_up import made_up
from flexlegion.errors import UserError
from flexlegion.initializers import initial_weights
from flexlegion.machine.running import all_gather, running_machine
from flexlegion.machine.topology import Topology
from flexlegion.network import Network
from flexlegion.plan import Plan
from flexlegion.precision import DEFAULT, PEAKS
from flexlegion.problem import Problem
from flexlegion.report.measured import recorded
from flexlegion.report.progress import ProgressBar
from flexlegion.runtime.program import TRAIN, Program
from flexlegion.runtime.trainer import IN_FLIGHT, batches, run_series
from flexlegion.simulator import full
from flexlegion.strategies import resolve
from flexlegion.strategy import Strategy
from flexlegion.tensor import Tensor
from flexlegion.tuner.duel import Duel, Rules

Data = tuple[Any, Any]  # x and y, as `Model.fit` takes them

BATCHES = 4  # of made-up data: more than one, so that caches do not hold all of them
WARM_UPS = 3  # iterations: Legion records its trace in the first two
ROUND_SECONDS = 0.3
# An iteration that takes longer is timed alone: what passes before its first task begins, and
# could be hidden behind an iteration before it, is nothing beside it.
LONG_ITERATION_SECONDS = 1.0
# Programs are held at the same time as long as they take at most this share of a memory.
MEMORY_SHARE = 0.5

BUSY_ITERATIONS = 30  # at most, in which it is noted when tasks run


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
        Measured time of an iteration, in each round.
    busy_ns
        For each device, how long tasks run there in an iteration, if that was wanted.
    """

    name: str
    strategy: Strategy
    simulated_ns: int
    seconds: list[float] = field(default_factory=list)
    busy_ns: dict[str, int] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Seconds an iteration."""
        return statistics.median(self.seconds)

    @property
    def measured_ns(self) -> int:
        """The same in whole nanoseconds."""
        return round(1e9 * self.median)


def problem_of(
    network: Network,
    topology: Topology,
    db: ProfileDB,
    calibration: Calibration = AS_MEASURED,
) -> Problem:
    """The network on this machine, with the times that the data base has now."""
    costs = MeasuredCosts(
        db,
        AnalyticCosts(PEAKS[network.precision]),
        optimizer=network.optimizer.type,
        calibration=calibration,
        precision=network.precision,
    )
    return network.problem(topology, costs)


def profile(
    requests: Sequence[TaskRequest],
    network: Network,
    topology: Topology,
    db: ProfileDB,
    shown: bool = True,
) -> int:
    """Measure the tasks, updates, loads and sums that the data base lacks; how many those were."""
    with ProgressBar("measuring operators", shown) as bar:
        count = measure(requests, db, bar.steps, precision=network.precision)
    return count + sum(
        measure_linears(device, db, network.optimizer, precision=network.precision)
        for device in one_of_each_model(topology)
    )


# That exist for every network, without costs: what is trained beside what a search finds.
KNOWN = ("data", "single", "model", "expert")


def resolvable(names: Iterable[str], problem: Problem) -> dict[str, Strategy]:
    """Built-in strategies by name, without those that this graph or batch does not allow."""
    strategies = {}
    for name in names:
        try:
            strategies[name] = resolve(name, problem.graph, problem.devices)
        except UserError:
            continue  # a batch smaller than the number of devices, say
    return strategies


def run_trials(
    trials: Sequence[Trial],
    network: Network,
    problem: Problem,
    rounds: int,
    *,
    data: Data | None = None,
    seed: int = 0,
    shown: bool = True,
    busy: bool = False,
) -> None:
    """Train with each for a moment, and note the seconds of an iteration.

    It goes in rounds, so that a disturbance does not hit one alone; strategies that do not fit into
    memory together come one after the other.

    Parameters
    ----------
    trials
        Get their `seconds`.
    network
        What is trained.
    problem
        Says what memory strategies need.
    rounds
        How often each is measured.
    data
        What it is trained on, x and y; made up unless given. Of sources and loaders, the beginning.
    seed
        Decides made-up data and weights.
    shown
        Whether this rank shows progress.
    busy
        Whether trials get their `busy_ns`, too.
    """
    done = 0
    programs = _Programs(network, problem, data, seed)
    with ProgressBar("training", shown) as bar:
        for group in programs.groups(trials):
            iterations = programs.of(group[0]).iterations()
            for number in range(rounds):
                for trial in group if number % 2 == 0 else reversed(group):
                    trial.seconds.append(programs.of(trial).train(iterations))
                    done += 1
                    bar.steps(done, rounds * len(trials))
            if busy:
                for trial in group:
                    trial.busy_ns = programs.of(trial).busy_ns(min(iterations, BUSY_ITERATIONS))
            programs.close()


def run_duel(
    trials: Sequence[Trial],
    network: Network,
    problem: Problem,
    rules: Rules,
    *,
    data: Data | None = None,
    seed: int = 0,
    shown: bool = True,
) -> Duel:
    """Train in rounds, with each strategy for a moment, until it is decided which is chosen.

    Parameters
    ----------
    trials
        The first is what the others have to beat. They get their `seconds`.
    network, problem, data, seed, shown
        As of `run_trials`; the seed decides the order in each round, too.
    rules
        When it is decided, and how long it may take.

    Returns
    -------
    Duel
        At its end; the same on all ranks.
    """
    by_name = {trial.name: trial for trial in trials}
    duel = Duel(trials[0].name, list(by_name)[1:], rules)
    programs = _Programs(network, problem, data, seed)
    rng = np.random.default_rng(seed)
    begin = time.perf_counter()
    with ProgressBar("training", shown) as bar:
        iterations = programs.of(trials[0]).iterations()
        while not duel.over(_slowest(time.perf_counter() - begin)):
            seconds = {}
            for name in rng.permutation(duel.taking_part).tolist():
                seconds[name] = programs.of(by_name[name]).train(iterations)
                by_name[name].seconds.append(seconds[name])
            duel.add(seconds)
            bar.steps(duel.rounds, rules.max_rounds)
    programs.close()
    return duel


class _Programs:
    """Strategies' programs, as many of them at the same time as fit into the memories.

    Parameters
    ----------
    network, problem, data, seed
        As of `run_trials`.
    """

    def __init__(self, network: Network, problem: Problem, data: Data | None, seed: int) -> None:
        self._samples = BATCHES * network.batch_size
        self._data = made_up(network.graph, self._samples, seed) if data is None else data
        self._arrays: Mapping[Tensor, npt.NDArray[Any]] | None = None
        self._network, self._problem, self._seed = network, problem, seed
        self._running: dict[str, _Running] = {}  # the one that was used last is the last

    def of(self, trial: Trial) -> _Running:
        """A strategy's program; those that were not used for longest make room for it."""
        running = self._running.pop(trial.name, None)
        while running is None and self._running and not self._fit([*self._trials(), trial]):
            self._running.pop(next(iter(self._running))).close()
        if running is None:
            running = _Running(trial, self._network, self._seed)
            if self._arrays is None:  # the same for all
                self._arrays = running.arrays(self._data, self._samples)
            running.warm_up(self._arrays)
        self._running[trial.name] = running
        return running

    def groups(self, trials: Sequence[Trial]) -> list[list[Trial]]:
        """Strategies in their order, in groups that fit into the memories together."""
        groups: list[list[Trial]] = []
        for trial in trials:
            if groups and self._fit([*groups[-1], trial]):
                groups[-1].append(trial)
            else:
                groups.append([trial])
        return groups

    def close(self) -> None:
        """End all programs."""
        for running in self._running.values():
            running.close()
        self._running.clear()

    def _trials(self) -> list[Trial]:
        return [running.trial for running in self._running.values()]

    def _fit(self, trials: Sequence[Trial]) -> bool:
        needed: Counter[str] = Counter()
        for trial in trials:
            needed.update(full(self._problem, trial.strategy).allocated_bytes)
        capacity = {d.memory: MEMORY_SHARE * d.memory_bytes for d in self._problem.topology.devices}
        return all(size <= capacity[memory] for memory, size in needed.items())


class _Running:
    """A strategy's program."""

    def __init__(self, trial: Trial, network: Network, seed: int) -> None:
        self.trial = trial
        self._machine = running_machine()
        self._batch_size = network.batch_size
        strategy, optimizer = trial.strategy, network.optimizer
        plan = Plan(
            network.graph,
            strategy,
            self._machine.devices,
            network.outputs,
            optimizer.states,
            optimizer.clips,
        )
        uses_gpus = any(name.startswith("gpu:") for name in strategy.devices())
        self._program = Program(plan, optimizer, seed, network.precision if uses_gpus else DEFAULT)
        weights = initial_weights(network.graph, seed)
        for tensor in network.graph.weights:
            if tensor.name in weights:
                self._program.write(tensor, weights[tensor.name])

    def arrays(self, data: Data, samples: int) -> dict[Tensor, npt.NDArray[Any]]:
        """What a user gave, checked, as arrays by input tensor."""
        return Binding(self._program, self._batch_size).first(*data, samples)

    def warm_up(self, arrays: Mapping[Tensor, npt.NDArray[Any]]) -> None:
        """Take the data, and train until Legion has its trace."""
        self._data = [self._program.add_data(tensor, array) for tensor, array in arrays.items()]
        self._samples = len(next(iter(arrays.values())))
        self._train(WARM_UPS)

    def iterations(self) -> int:
        """How many iterations take about `ROUND_SECONDS`; one, if it is a long one."""
        if self.train(1) > LONG_ITERATION_SECONDS:
            return 1
        once = max(self.train(WARM_UPS + IN_FLIGHT), 1e-4)
        return int(np.clip(ROUND_SECONDS / once, IN_FLIGHT, 300))

    def train(self, iterations: int) -> float:
        """Seconds an iteration, from the end of a first one to that of the last.

        The first one is timed alone: in a series, it is awaited only after others were issued,
        for which Legion may have to let it and more of them end. A single one is timed whole.
        """
        if iterations == 1:
            return _slowest(self._seconds(1))
        seconds = max(1e-9, self._seconds(iterations + 1) - self._seconds(1)) / iterations
        return _slowest(seconds)

    def busy_ns(self, iterations: int) -> dict[str, int]:
        """For each device, how long tasks run there in an iteration."""
        self._program.record(True)
        self._train(iterations)
        return recorded(self._program, self._machine, iterations).busy_ns()

    def close(self) -> None:
        """Give its memory back."""
        self._program.close()

    def _seconds(self, iterations: int) -> float:
        """Seconds of so many iterations, from a quiet machine to a quiet machine."""
        self._program.wait()
        begin = time.perf_counter()
        self._train(iterations)
        self._program.wait()
        return time.perf_counter() - begin

    def _train(self, iterations: int) -> None:
        """So many iterations over the data, from their beginning.

        The learning rate is 0, lest gradients vanish and arithmetic become that of tiny numbers.
        """
        rows = np.arange(iterations * self._batch_size) % self._samples
        run_series(self._program, TRAIN, batches(rows, self._batch_size, self._data))


def _slowest(seconds: float) -> float:
    """The most of all ranks: they have to go on in the same way, and wait for the slowest."""
    ranks = all_gather(np.float64(seconds).tobytes())
    return float(max(np.frombuffer(b"".join(ranks), np.float64)))
