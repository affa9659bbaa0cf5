"""From times of tasks alone to times in training: what one strategy's training tells of all."""

from __future__ import annotations

from collections.abc import Callable

from flexlegion.cost.measured import Calibration
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.machine.topology import Topology
from flexlegion.networks.network import Network
from flexlegion.report.measured import MeasuredTimeline
from flexlegion.sim.simulator import Timeline, full
from flexlegion.strategy.strategy import ResolvedStrategy
from flexlegion.tuner.trials import problem_of

STEPS = 8  # of the secant method
LEAST_SHOWN = 0.05  # of what tasks take: less of the runtime tells nothing of other strategies
MOST = 20.0  # times as long as measured by itself is the most that the runtime is taken to need


def calibration_by(
    strategy: ResolvedStrategy,
    measured_ns: int,
    timeline: MeasuredTimeline,
    network: Network,
    topology: Topology,
    db: ProfileDB,
) -> Calibration:
    """What makes a strategy's simulation agree with its training.

    Parameters
    ----------
    strategy
        What was trained.
    measured_ns
        Its iteration.
    timeline
        When its tasks ran.
    network, topology, db
        Of which its simulations are.
    """
    return calibrated(
        lambda calibration: full(problem_of(network, topology, db, calibration), strategy),
        measured_ns,
        round(timeline.pace(measured_ns) * sum(timeline.computing_ns().values())),
    )


def calibrated(
    simulate: Callable[[Calibration], Timeline], measured_ns: int, computing_ns: int
) -> Calibration:
    """What makes a strategy's simulated iteration the measured one.

    Parameters
    ----------
    simulate
        That strategy.
    measured_ns
        Its iteration.
    computing_ns
        How long all devices together compute in it.
    """
    alone = simulate(Calibration(1.0, 0.0))
    factor = computing_ns / sum(alone.load_ns[device] for device in alone.problem.devices.names)
    # The rest of the iteration is the runtime's: it grows with what that takes, almost evenly.
    before, there = 0.0, simulate(Calibration(factor, 0.0)).iteration_time_ns
    runtime, here = 1.0, simulate(Calibration(factor, 1.0)).iteration_time_ns
    shown = here - there
    if shown < LEAST_SHOWN * there:  # a ratio of two small numbers says nothing of others
        return Calibration(factor * (measured_ns - shown) / max(there, 1), runtime)
    for _ in range(STEPS):
        if abs(here - measured_ns) <= measured_ns / 1000 or runtime == before or here == there:
            break
        slope = (here - there) / (runtime - before)
        before, there = runtime, here
        runtime = min(max(0.0, runtime + (measured_ns - here) / slope), MOST)
        here = simulate(Calibration(factor, runtime)).iteration_time_ns
    return Calibration(factor, runtime)
