"""Strategies on the running Legion: priced by measured times, and tried in training for a moment.

Every rank makes the same calls in the same order.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.measure import TaskRequest, measure, measure_linears, one_of_each_model
from flexlegion.cost.measured import AS_MEASURED, Calibration, MeasuredCosts
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.cost.timing import share
from flexlegion.data.synthetic import synthetic
from flexlegion.errors import UserError
from flexlegion.network import Network
from flexlegion.precision import DEFAULT, PEAKS
from flexlegion.problem import Problem
from flexlegion.report.progress import ProgressBar
from flexlegion.runtime.program import TRAIN
from flexlegion.runtime.trainer import IN_FLIGHT, batches, run_series
from flexlegion.simulator import full
from flexlegion.strategies import resolve
from flexlegion.strategy import Strategy
from flexlegion.topology import Topology
from flexlegion.zoo import ZOO

BATCHES = 4  # of data: more than one, so that caches do not hold all of them
WARM_UPS = 3  # iterations: Legion records its trace in the first two
ROUND_SECONDS = 0.3
# Models are held at the same time as long as they take at most this share of a memory.
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
        What is trained, on made-up data.
    problem
        Says what memory strategies need.
    rounds
        How often each is measured.
    seed
        Decides data and weights.
    shown
        Whether this rank shows progress.
    busy
        Whether trials get their `busy_ns`, too.
    """
    if network.reference not in ZOO:
        raise UserError(f"there are no data to try {network} with; it has to be one of the zoo's")
    entry = ZOO[network.reference]
    sizes = entry.sizes | dict(network.sizes)
    samples = BATCHES * network.batch_size
    data = synthetic(entry.task, sizes, samples, 1, seed).train
    done = 0
    with ProgressBar("training", shown) as bar:
        for group in _groups(trials, problem):
            running = [_Running(trial, network, data.inputs, data.y, seed) for trial in group]
            once = max(running[0].train(WARM_UPS + IN_FLIGHT), 1e-4)
            iterations = int(np.clip(ROUND_SECONDS / once, IN_FLIGHT, 300))
            for number in range(rounds):
                for each in running if number % 2 == 0 else reversed(running):
                    each.trial.seconds.append(each.train(iterations))
                    done += 1
                    bar.steps(done, rounds * len(trials))
            for each in running:
                if busy:
                    noted = min(iterations, BUSY_ITERATIONS)
                    timeline = each.model.timeline(data.inputs, data.y, noted)
                    each.trial.busy_ns = timeline.busy_ns()
                each.model.close()


class _Running:
    """A strategy's model, compiled and warm."""

    def __init__(self, trial: Trial, network: Network, x: Any, y: Any, seed: int) -> None:
        self.trial = trial
        self.model = network.model.copy(seed)
        uses_gpus = any(name.startswith("gpu:") for name in trial.strategy.devices())
        self.model.compile(
            network.optimizer,
            network.loss,
            [],
            trial.strategy,
            precision=network.precision if uses_gpus else DEFAULT,
        )
        self._data, self._samples = self.model.bind(x, y)
        self._seconds(WARM_UPS)

    def train(self, iterations: int) -> float:
        """Seconds an iteration, from the end of a first one to that of the last.

        The first one is timed alone: in a series, it is awaited only after others were issued,
        for which Legion may have to let it and more of them end.
        """
        seconds = max(1e-9, self._seconds(iterations + 1) - self._seconds(1)) / iterations
        # All ranks have to go on in the same way, and the slowest decides what an iteration takes.
        return float(max(np.frombuffer(b"".join(share(np.float64(seconds).tobytes())), np.float64)))

    def _seconds(self, iterations: int) -> float:
        """Seconds of so many iterations, from a quiet machine to a quiet machine.

        The learning rate is 0, lest gradients vanish and arithmetic become that of tiny numbers.
        """
        program, batch_size = self.model.program, self.model.batch_size
        rows = np.arange(iterations * batch_size) % self._samples
        program.wait()
        begin = time.perf_counter()
        run_series(program, TRAIN, batches(rows, batch_size, self._data))
        program.wait()
        return time.perf_counter() - begin


def _groups(trials: Sequence[Trial], problem: Problem) -> list[list[Trial]]:
    """Trials in their order, in groups that fit into the memories together."""
    capacity = {d.memory: MEMORY_SHARE * d.memory_bytes for d in problem.topology.devices}
    groups: list[list[Trial]] = []
    held: dict[str, int] = {}
    for trial in trials:
        needed = full(problem, trial.strategy).allocated_bytes
        together = {memory: held.get(memory, 0) + size for memory, size in needed.items()}
        if groups and all(size <= capacity[memory] for memory, size in together.items()):
            groups[-1].append(trial)
            held = together
        else:
            groups.append([trial])
            held = dict(needed)
    return groups
