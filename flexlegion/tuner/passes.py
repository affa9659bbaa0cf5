"""Tasks measured in several passes, between rounds of training.

A machine may be a fifth slower for a tenth of a second, or for a minute, and whatever is measured
then takes a fifth longer. So that simulated and measured iterations speak of the same machine, each
task is measured for a moment again and again, over the whole time for which strategies train. What
counts is the mean: an iteration meets fast and slow moments as they come, and so takes the sum of
its tasks' means.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from flexlegion.cost.measured import VARIANTS
from flexlegion.cost.model import Linear
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.cost.records import Sample
from flexlegion.machine.running import running_machine
from flexlegion.machine.topology import Topology
from flexlegion.networks.network import Network
from flexlegion.plan.passes import LINEAR_PASSES
from flexlegion.profiling.gpus import library_of
from flexlegion.profiling.tasks import TaskRequest, one_of_each_model
from flexlegion.profiling.timing import Repeats
from flexlegion.tuner.runtime_costs import software
from flexlegion.tuner.timed import slowest
from flexlegion.tuner.trials import profile

# Of a task in one pass. One run of a long task is enough: a mean is of many moments if there are as
# many passes as the time allows, not if each has several runs in a row.
REPEATS = Repeats(warmups=2, least=1, most=7, budget_ns=6_000_000)
MOST = 12  # passes


class Passes:
    """Measures the same tasks in each pass.

    Parameters
    ----------
    requests
        The tasks; beside them, updates, loads and sums.
    network, topology
        Whose they are, and where.
    """

    def __init__(
        self, requests: Sequence[TaskRequest], network: Network, topology: Topology
    ) -> None:
        self._requests, self._network, self._topology = requests, network, topology
        self._folder = tempfile.TemporaryDirectory(prefix="flexlegion-")
        self._passes: list[ProfileDB] = []
        self._seconds = 0.0
        self.measured = 0  # tasks, updates, loads and sums, in a pass

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self._passes)

    def fits(self, seconds: float) -> bool:
        """Whether one more pass may be made, so that all of them take about so many seconds."""
        passes = len(self._passes)
        return passes < MOST and self._seconds * (passes + 1) <= seconds * passes

    def measure(self, shown: bool) -> None:
        """One more pass."""
        begin = time.perf_counter()
        db = self._new(f"pass{len(self._passes)}")
        self._passes.append(db)
        self.measured = profile(self._requests, self._network, self._topology, db, shown, REPEATS)
        self._seconds += slowest(time.perf_counter() - begin)

    def means(self, known: ProfileDB) -> ProfileDB:
        """A data base with each time's mean over the passes, and what the runtime takes.

        Parameters
        ----------
        known
            Where that stands.
        """
        result = self._new("means")
        precision = self._network.training.precision
        names = running_machine().devices
        for device in one_of_each_model(self._topology):
            model, library = device.model, library_of(names.number(device.name), precision)
            passes = [db.tasks(model, library) for db in self._passes]
            for key in passes[0]:
                times = [its[key] for its in passes if key in its]
                together, alone = (round(statistics.mean(its)) for its in zip(*times, strict=True))
                result.add_task(model, library, key, Sample(together, len(times), 0, alone))
            for pass_ in LINEAR_PASSES:
                for variant in VARIANTS if pass_ == "update" else ("",):
                    found = [db.linear(model, library, pass_, variant) for db in self._passes]
                    lines = [line for line in found if line is not None]
                    if lines:
                        result.add_linear(model, library, pass_, _mean(lines), variant)
            text = software(running_machine())
            runtime = known.runtime(model, text)
            if runtime is not None:
                result.add_runtime(model, text, runtime)
        return result

    def close(self) -> None:
        """Close and remove the passes' files; that of the means as well."""
        for db in self._passes:
            db.close()
        self._folder.cleanup()

    def _new(self, name: str) -> ProfileDB:
        return ProfileDB(Path(self._folder.name) / name)


def _mean(lines: Sequence[Linear]) -> Linear:
    overhead = statistics.mean(line.overhead_ns for line in lines)
    rate = statistics.harmonic_mean([line.bytes_per_second for line in lines])
    contention = statistics.mean(line.contention for line in lines)
    return Linear(round(overhead), round(rate), contention)
