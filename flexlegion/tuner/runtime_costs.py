"""What the runtime takes on this machine, by training small synthetic programs.

A chain of layer normalisations over tensors of some MiB is trained in several ways, whose
iterations differ in how many launches they have, how many tasks, and where these run. Tensors are
large, so that the runtime's own data come from memory again and again, as in real networks; in a
loop of empty tasks it is three times as fast. And a launch touches some four tensors, as most do.

From these follow, for `RuntimeCosts`:

* the utility processor's work: what the process computes beside the threads that run tasks, fitted
  by least squares as so much an iteration, a launch, a task, and a dependency on another device;
* `dispatch`: the median pause between a task and the next on the same device, where launches are
  not fused;
* `wake`: how much longer that pause is where each task waits for one of another device.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.model import RuntimeCosts
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.graph.graph import Operator
from flexlegion.machine.parts import Device
from flexlegion.machine.running import RunningMachine, all_gather, running_machine
from flexlegion.machine.topology import Topology
from flexlegion.model.model import Model
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.plan.passes import OPERATOR_PASSES
from flexlegion.profiling.transport import settings
from flexlegion.sim.simulator import full
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.granularity import DEFAULT_GRANULARITY, Granularity
from flexlegion.strategy.strategy import Strategy
from flexlegion.training.program import TRAIN
from flexlegion.tuner.timed import Running

ROUNDS = 5
SAMPLES = 32  # a device, at least 64 in all; with the width, 1 MiB a device and tensor
WIDTH = 8192
LONG, SHORT = 16, 4  # operators of a chain
ALONE = Granularity(fused_launches=1)


def software(machine: RunningMachine) -> str:
    """What the runtime's costs depend on beside the devices, for the profile data base.

    Examples
    --------
    ``"legate 26.1.0, 2 processors of 1 rank on 2 cores, -ll:bgwork 1"``
    """
    owned = zip(machine.threads, machine.owners, strict=True)
    threads = [its for its, owner in owned if owner == machine.rank]
    cores = len(os.sched_getaffinity(0))
    several = f" with {'+'.join(map(str, threads))} threads" if max(threads) > 1 else ""
    parts = [
        f"legate {metadata.version('legate')}",
        f"{len(threads)} processors{several} of {machine.ranks} ranks on {cores} cores",
        *settings(os.environ),
    ]
    return ", ".join(parts)


def measure_runtime(device: Device, topology: Topology, db: ProfileDB) -> int:
    """Measure what the runtime takes on devices of a model, unless the data base has it.

    Parameters
    ----------
    device
        Of `flexlegion.profiling.local.local_topology`.
    topology
        That.
    db
        Where it is kept.

    Returns
    -------
    int
        How much was measured: 0 or 1.
    """
    machine = running_machine()
    key = software(machine)
    known = db.runtime(device.model, key)
    if all(rank == b"\1" for rank in all_gather(bytes([known is not None]))):
        return 0
    alike = [d for d in topology.devices if d.model == device.model]
    together = [d.name for d in alike if d.memory == device.memory]
    costs = _measured([d.name for d in alike], together[:2], topology)
    db.add_runtime(device.model, key, costs)
    return 1


@dataclass
class Chain:
    """A way to train the chain, and what came of it in each round.

    Parameters
    ----------
    length
        Operators.
    devices
        The first operator's, the second's and so on, in turns; or, if `split`, of each.
    split
        Whether samples are divided among the devices.
    granularity
        Whether launches are fused.
    work_ns
        Of the utility processor in an iteration.
    pauses_ns
        Between a task and the next.
    launches, tasks, crossings
        Of an iteration; see `RuntimeCosts`.
    """

    length: int
    devices: Sequence[str]
    split: bool = False
    granularity: Granularity | None = ALONE
    work_ns: list[float] = field(default_factory=list)
    pauses_ns: list[float] = field(default_factory=list)
    launches: int = 0
    tasks: int = 0
    crossings: int = 0


def _measured(names: Sequence[str], together: Sequence[str], topology: Topology) -> RuntimeCosts:
    """From chains on devices of one model, of which `together` share a memory."""
    one = names[:1]
    alone = Chain(LONG, one)
    turns = Chain(LONG, together)
    chains = [Chain(LONG, one, granularity=None), alone, Chain(SHORT, one)]
    if len(together) > 1:
        chains.append(turns)
    if len(names) > 1:
        chains.append(Chain(LONG, names, split=True))
    running = [_run(chain, len(names), topology) for chain in chains]
    for _ in range(ROUNDS):
        for chain, program in zip(chains, running, strict=True):
            _round(chain, program)
    for program in running:
        program.close()
    work = [statistics.median(chain.work_ns) for chain in chains]
    counts = [(1, c.launches, c.tasks, c.crossings) for c in chains]
    dispatch = statistics.median(alone.pauses_ns)
    wake = statistics.median(turns.pauses_ns) - dispatch if turns in chains else 0.0
    mine = np.array([*fitted(counts, work), max(0.0, dispatch), max(0.0, wake)])
    ranks = [np.frombuffer(rank) for rank in all_gather(mine.tobytes())]
    cores = len(os.sched_getaffinity(0))
    return RuntimeCosts(*[*(round(time) for time in np.mean(ranks, axis=0)), cores])


def fitted(counts: Sequence[Sequence[int]], work: Sequence[float]) -> list[float]:
    """Work as so much for each thing that is counted; none is negative.

    What is left of each program, as a share of its work, has the least sum of squares: programs of
    little work say as much as those of much.

    Parameters
    ----------
    counts
        Of each program, how many there are of each thing in an iteration.
    work
        Of an iteration of each.
    """
    shares = np.array(counts, float) / np.array(work, float)[:, None]
    used = [column for column in range(shares.shape[1]) if shares[:, column].any()]
    while True:
        found, *_ = np.linalg.lstsq(shares[:, used], np.ones(len(work)), rcond=None)
        if len(used) == 1 or min(found) >= 0:
            break
        used.pop(int(np.argmin(found)))  # the others are fitted without it
    values = [0.0] * shares.shape[1]
    for column, value in zip(used, found, strict=True):
        values[column] = max(0.0, float(value))
    return values


def _run(chain: Chain, devices: int, topology: Topology) -> Running:
    """Its program, after Legion has its trace."""
    network = _network(chain.length, SAMPLES * max(2, devices))
    configs = {}
    for i, operator in enumerate(network.graph.operators):
        configs[operator.name] = _config(operator, chain, i)
    strategy = Strategy(configs, granularity=chain.granularity)
    resolved = strategy.checked(network.graph, topology.names)
    program = Running(resolved, network, seed=0)
    program.warm_up()
    launches = program.program.plan.launches
    issued = program.program.issued(TRAIN)
    loads = [launch for launch in launches if launch.pass_ == "load"]
    chain.launches = len(issued) + len(loads)
    chain.tasks = sum(len(launches[i].devices) for run in issued for i in run)
    chain.tasks += sum(len(load.devices) for load in loads)
    granularity = chain.granularity or DEFAULT_GRANULARITY
    problem = network.problem(topology, AnalyticCosts(), granularity=granularity)
    chain.crossings = full(problem, resolved).crossings
    return program


def _network(length: int, samples: int) -> Network:
    """A dense layer that makes wide samples of narrow ones, and the chain."""
    model = Model(samples)
    x = model.dense(model.input((16,), name="x"), WIDTH, name="wide")
    for i in range(length):
        x = model.layer_norm(x, name=f"link{i}")
    return Network.of(model, TrainingSpec(loss="mean_squared_error"))


def _config(operator: Operator, chain: Chain, number: int) -> ParallelConfig:
    degrees = [1] * len(operator.space)
    if not chain.split:
        return ParallelConfig(tuple(degrees), (chain.devices[number % len(chain.devices)],))
    degrees[0] = len(chain.devices)
    return ParallelConfig(tuple(degrees), tuple(chain.devices))


def _round(chain: Chain, running: Running) -> None:
    """A series of iterations in which it is noted when tasks run."""
    iterations = max(3, min(running.iterations(), 20))
    running.program.wait()
    running.program.record(True)
    whole, threads = _process_ns(), _threads_ns()
    running.series(iterations)
    running.program.wait()
    whole, after = _process_ns() - whole, _threads_ns()
    tasks = running.program.record(False)
    of_tasks = {int(thread) for thread in np.unique(tasks["thread"])}
    computing = sum(after[thread] - threads.get(thread, 0) for thread in of_tasks & after.keys())
    chain.work_ns.append((whole - computing) / iterations)
    launches = running.program.plan.launches
    runs = {
        launch: number
        for number, run in enumerate(running.program.issued(TRAIN))
        for launch in run
        if launches[launch].pass_ in OPERATOR_PASSES
    }
    chain.pauses_ns.append(_pause(tasks, runs))


def _pause(tasks: npt.NDArray[Any], runs: Mapping[int, int]) -> float:
    """The median pause between a task and the next, of whichever device.

    `runs` has the launches that count, with numbers; of one number are those that are fused.
    """
    mine = tasks[[int(launch) in runs for launch in tasks["launch"]]]
    mine = mine[np.argsort(mine["start_time"], kind="stable")]
    of = np.array([runs[int(launch)] for launch in mine["launch"]])
    pauses = (mine["start_time"][1:] - mine["end_time"][:-1])[of[1:] != of[:-1]]
    return float(np.median(pauses)) if len(pauses) else 0.0


def _process_ns() -> int:
    """Processor time of this process."""
    return time.clock_gettime_ns(time.CLOCK_PROCESS_CPUTIME_ID)


def _threads_ns() -> dict[int, int]:
    """Processor time of each of its threads."""
    times = {}
    for name in os.listdir("/proc/self/task"):
        thread = int(name)
        try:
            # The clock of a thread, as Linux numbers it (clock_getres(2), pthread_getcpuclockid).
            times[thread] = time.clock_gettime_ns((~thread << 3) | 6)
        except OSError:
            continue  # it has ended meanwhile
    return times
