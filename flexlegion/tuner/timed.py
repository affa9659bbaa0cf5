"""A strategy's program on the running Legion, timed. Every rank makes the same calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.data.synthetic import made_up
from flexlegion.graph.initializers import check_known, initial_weights
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.arrangement import forms_of
from flexlegion.machine.running import all_gather, running_machine
from flexlegion.networks.network import Network
from flexlegion.objective.precision import DEFAULT
from flexlegion.plan.plan import Plan
from flexlegion.report.measured import MeasuredTimeline, recorded
from flexlegion.strategy.strategy import ResolvedStrategy
from flexlegion.training.binding import Binding
from flexlegion.training.program import TRAIN, Program
from flexlegion.training.trainer import IN_FLIGHT, batches, run_series

Data = tuple[Any, Any]  # x and y, as `Model.fit` takes them

BATCHES = 4  # of made-up data: more than one, so that caches do not hold all of them
WARM_UPS = 3  # iterations: Legion records its trace in the first two
ROUND_SECONDS = 0.25
# Of iterations that take longer, one a round has to do.
LONG_ITERATION_SECONDS = 0.5


def data_for(network: Network, data: Data | None, seed: int) -> tuple[Data, int]:
    """What a network is tried on, and how many samples: made up unless given."""
    samples = BATCHES * network.batch_size
    return (made_up(network.graph, samples, seed) if data is None else data), samples


class Running:
    """A strategy's program.

    Parameters
    ----------
    strategy
        A configuration for every operator.
    network
        What is trained.
    seed
        Decides made-up data and weights.
    """

    def __init__(self, strategy: ResolvedStrategy, network: Network, seed: int) -> None:
        check_known(network.graph)
        self._machine = running_machine()
        self._network, self._seed = network, seed
        self._batch_size = network.batch_size
        optimizer = network.training.optimizer
        plan = Plan(strategy, network.outputs, optimizer.states, optimizer.clips)
        uses_gpus = any(name.startswith("gpu:") for name in strategy.devices())
        self.program = Program(
            plan, optimizer, seed, network.training.precision if uses_gpus else DEFAULT
        )
        weights = initial_weights(network.graph, seed)
        for tensor in network.graph.weights:
            if tensor.name in weights:
                self.program.write(tensor, weights[tensor.name])

    def arrays(self, data: Data, samples: int) -> dict[Tensor, npt.NDArray[Any]]:
        """What a user gave, checked, as arrays by input tensor."""
        graph, outputs = self.program.plan.graph, self._network.outputs
        its = forms_of(self._network.model.origin, graph, outputs)
        return Binding(self.program, self._batch_size, forms=its).first(*data, samples)

    def warm_up(self, arrays: Mapping[Tensor, npt.NDArray[Any]] | None = None) -> None:
        """Take the data, made up unless given, and train until Legion has its trace."""
        if arrays is None:
            arrays = self.arrays(*data_for(self._network, None, self._seed))
        self._data = [self.program.add_data(tensor, array) for tensor, array in arrays.items()]
        self._samples = len(next(iter(arrays.values())))
        self.series(WARM_UPS)

    def iterations(self) -> int:
        """How many iterations take about `ROUND_SECONDS`; one, if it is a long one."""
        once = max(self.train(1), 1e-4)
        if once > LONG_ITERATION_SECONDS:
            return 1
        return int(np.clip(ROUND_SECONDS / once, IN_FLIGHT, 300))

    def train(self, iterations: int) -> float:
        """Seconds an iteration, from the end of a first one to that of the last.

        What passes before the first one's tasks begin, which later ones hide behind those before
        them, so does not count.
        """
        self.program.record(True)
        self.series(iterations + 1)
        ends = ends_of(self.program.record(False), iterations + 1)
        passed = max(1.0, float(ends[-1] - ends[0])) if len(ends) else 0.0
        return slowest(1e-9 * passed / iterations)

    def recorded(self, iterations: int) -> MeasuredTimeline:
        """When each task ran in so many iterations."""
        self.program.record(True)
        self.series(iterations)
        return recorded(self.program, self._machine, iterations)

    def close(self) -> None:
        """Give its memory back."""
        self.program.close()

    def series(self, iterations: int) -> None:
        """So many iterations over the data, from their beginning.

        The learning rate is 0, lest gradients vanish and arithmetic become that of tiny numbers.
        """
        rows = np.arange(iterations * self._batch_size) % self._samples
        run_series(self.program, TRAIN, batches(rows, self._batch_size, self._data))


def ends_of(tasks: npt.NDArray[Any], iterations: int) -> npt.NDArray[np.int64]:
    """When each of some iterations ended, by the tasks that ran on this rank.

    Parameters
    ----------
    tasks
        Rows of `Program.record`.
    iterations
        How many there were.

    Returns
    -------
    array
        Of ns; empty if none of the plan's tasks ran here.
    """
    mine = tasks[tasks["launch"] >= 0]
    if len(mine) == 0:
        return np.zeros(0, np.int64)
    # Each task of a micro-batch ran once in every iteration, in one after the other.
    order = np.lexsort((mine["start_time"], mine["part"], mine["round"], mine["launch"]))
    ends: npt.NDArray[np.int64] = mine["end_time"][order].reshape(-1, iterations).max(axis=0)
    return ends


def slowest(seconds: float) -> float:
    """The most of all ranks: they have to go on in the same way, and wait for the slowest."""
    ranks = all_gather(np.float64(seconds).tobytes())
    return float(max(np.frombuffer(b"".join(ranks), np.float64)))
