"""From times of tasks alone to times in training: what one strategy's training tells of all."""

from __future__ import annotations

from collections.abc import Callable

from flexlegion.cost.measured import Calibration
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.machine.topology import Topology
from flexlegion.network import Network
from flexlegion.simulator import Timeline, full
from flexlegion.tuner.trials import Trial, problem_of

NEWTON_STEPS = 8


def calibration_by(
    trial: Trial, network: Network, topology: Topology, db: ProfileDB
) -> Calibration:
    """What makes a trial's simulation agree with its training.

    Parameters
    ----------
    trial
        After `run_trials`, with the time that its devices compute.
    network, topology, db
        Of which its simulations are.
    """
    return calibrated(
        lambda calibration: full(problem_of(network, topology, db, calibration), trial.strategy),
        round(1e9 * trial.median),
        sum(trial.busy_ns.values()),
    )


def calibrated(
    simulate: Callable[[Calibration], Timeline], measured_ns: int, busy_ns: int
) -> Calibration:
    """What makes a strategy's simulated iteration the measured one.

    Parameters
    ----------
    simulate
        That strategy.
    measured_ns
        Its iteration.
    busy_ns
        How long all devices together compute in it.
    """
    alone = simulate(Calibration(1.0, 0))
    factor = busy_ns / sum(alone.load_ns[device] for device in alone.problem.devices.names)
    # The rest of the iteration passes between tasks: a longest path's length is a convex function
    # of it, so Newton's steps come from above after the first, and do not go back.
    launch, step = 0.0, 1000.0
    for _ in range(NEWTON_STEPS):
        here, there = (
            simulate(Calibration(factor, round(at))).iteration_time_ns
            for at in (launch, launch + step)
        )
        slope = (there - here) / step
        if slope <= 0:
            break
        launch = max(0.0, launch + (measured_ns - here) / slope)
    return Calibration(factor, round(launch))
