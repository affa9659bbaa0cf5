"""Learning-rate schedules: functions of a training step, from 0, that give a factor of the rate.

`Model.compile` takes one, made here or any other function. Those that go by epochs are told how
many steps an epoch has.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flexlegion.base.arguments import is_number, takes, typed
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import described

Schedule = Callable[[int], float]


def factor_at(schedule: Schedule, step: int) -> float:
    """The factor of a schedule, which may be anybody's function, for a step.

    Raises
    ------
    UserError
        If it is no function of a step, or gives no finite number from 0.
    """
    if not takes(schedule, 1):
        raise UserError(
            f"a schedule is a function of the step's number alone, but {described(schedule)} is "
            "none"
        )
    factor = schedule(step)
    if not is_number(factor) or not 0 <= factor < math.inf:
        raise UserError(
            f"the schedule gives {described(factor)} for step {step}, but has to give a finite "
            "number, at least 0: the factor of the learning rate"
        )
    return float(factor)


def constant(_step: int) -> float:
    """The learning rate as it is."""
    return 1.0


@typed
def step_decay(steps_per_epoch: int, factor: float, *, after: int = 1, every: int = 1) -> Schedule:
    """Multiply with `factor` after every few epochs.

    With ``after=6, every=1, factor=1/1.2`` it is Zaremba et al.'s (2014) for their medium language
    model; with ``after=every=30, factor=0.1`` the usual one of image classification.

    Parameters
    ----------
    steps_per_epoch
        Steps of an epoch.
    factor
        Of each decay; above 0, at most 1.
    after
        Epochs before the first decay.
    every
        Epochs from one decay to the next.

    Raises
    ------
    UserError
        If a number is out of range.
    """
    _check_factor(factor)
    _check_counts(steps_per_epoch=steps_per_epoch, after=after, every=every)

    def schedule(step: int) -> float:
        epoch = step // steps_per_epoch
        return 1.0 if epoch < after else float(factor ** (1 + (epoch - after) // every))

    return schedule


@typed
def exponential(steps_per_epoch: int, factor: float) -> Schedule:
    """Multiply with `factor` over each epoch, a little at each step.

    Raises
    ------
    UserError
        If a number is out of range.
    """
    _check_factor(factor)
    _check_counts(steps_per_epoch=steps_per_epoch)
    return lambda step: float(factor ** (step / steps_per_epoch))


@typed
def cosine(steps: int, *, last: float = 0.0) -> Schedule:
    """Half a period of a cosine from 1 to `last` over `steps` steps (Loshchilov, Hutter 2017).

    Raises
    ------
    UserError
        If a number is out of range.
    """
    _check_counts(steps=steps)
    if not 0 <= last <= 1:
        raise UserError(f"the last factor of a schedule has to be 0 to 1, but is {last}")

    def schedule(step: int) -> float:
        done = min(step / steps, 1.0)
        return last + (1 - last) * (1 + math.cos(math.pi * done)) / 2

    return schedule


@typed
def inverse_sqrt(warmup: int) -> Schedule:
    """Rise linearly to 1 over `warmup` steps, then fall with the root of the step.

    The schedule of Vaswani et al. (2017), whose rate at its peak is the optimizer's here.

    Raises
    ------
    UserError
        If a number is out of range.
    """
    _check_warmup(warmup)
    return lambda step: min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


@typed
def with_warmup(schedule: Schedule, steps: int) -> Schedule:
    """Rise linearly over `steps` steps, then follow `schedule` from its beginning.

    Raises
    ------
    UserError
        If a number is out of range.
    """
    _check_warmup(steps)
    return lambda step: (step + 1) / steps if step < steps else schedule(step - steps)


def _check_factor(factor: float) -> None:
    if not 0 < factor <= 1:
        raise UserError(f"the decay factor has to be above 0 and at most 1, but is {factor}")


def _check_warmup(steps: int) -> None:
    if steps < 1:
        raise UserError(f"a schedule's warm-up has to be at least 1 step, but is {steps}")


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            what = name.replace("_", " ")
            raise UserError(f"a schedule's '{what}' has to be at least 1, but is {value}")
