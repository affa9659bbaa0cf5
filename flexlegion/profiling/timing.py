"""Timing on the running Legion: a thin view of ``native/runtime/measurement.h``.

Every rank makes the same calls in the same order, and every rank gets the same times.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

from flexlegion.bindings import native
from flexlegion.cost.model import Linear
from flexlegion.cost.records import Sample
from flexlegion.objective.optimizers import SGD, Optimizer
from flexlegion.objective.precision import DEFAULT
from flexlegion.plan.native_optimizer import to_native
from flexlegion.plan.plan import Plan


@dataclass(frozen=True)
class Repeats:
    """How often a task is run.

    Parameters
    ----------
    warmups
        Runs before those that count.
    least, most
        Bounds of the runs that count.
    budget_ns
        Nanoseconds; within them, and between the bounds, it runs as often as it can.
    sweep_bytes
        How much other memory the processor reads and writes before each run, for in an iteration
        other tasks have used its caches since it last saw a task's data. The default is about a
        core's second-level cache; with it, LeNet's tasks take what they take in training.
    """

    warmups: int = 3
    least: int = 7
    most: int = 25
    budget_ns: int = 30_000_000
    sweep_bytes: int = 2 << 20


REPEATS = Repeats()


@dataclass(frozen=True)
class TaskTimes:
    """A task's times; nanoseconds of each run.

    Parameters
    ----------
    together
        While the devices that share its memory run the same task, each over its own data.
    alone
        While they are idle; empty where there are none.
    """

    together: list[int]
    alone: list[int]


def kernel_library() -> str:
    """The kernel library of CPU processors and its version: ``oneDNN 3.2.1``."""
    return str(native.rt().ffi.string(native.running().kernel_library).decode())


def sample_of(times: TaskTimes) -> Sample:
    """Medians and spread of some runs' times."""
    runs = times.together
    alone = round(statistics.median(times.alone)) if times.alone else 0
    if len(runs) == 1:
        return Sample(runs[0], 1, 0, alone)
    low, middle, high = statistics.quantiles(runs, n=4, method="inclusive")
    return Sample(round(middle), len(runs), round(high - low), alone)


def time_task(
    plan: Plan,
    launch: int,
    part: int,
    *,
    optimizer: Optimizer | None = None,
    bound: int = 1,
    precision: str = DEFAULT,
    repeats: Repeats = REPEATS,
) -> TaskTimes:
    """Time one task of a plan on the device that the plan names.

    Parameters
    ----------
    plan, launch, part
        Which task: the number of the launch and of the task in it.
    optimizer
        For update tasks.
    bound
        Values of int32 inputs are made up below this.
    precision
        Of GPUs.
    repeats
        How often to run it.

    Raises
    ------
    UserError
        If the memory is too small.
    """
    array = native.Arrays()
    return _times(
        native.rt().lib.fl_rt_measure_task,
        plan.handle,
        to_native(array, optimizer or SGD()),
        launch,
        part,
        bound,
        native.enumeration("fl_precision")[precision],
        _native_repeats(repeats),
    )


def time_sum(device: int, slots: int, elements: int, repeats: Repeats = REPEATS) -> TaskTimes:
    """Time the sum of `slots` partial gradients of `elements` float32 on a device."""
    measure = native.rt().lib.fl_rt_measure_sum
    return _times(measure, device, slots, elements, _native_repeats(repeats))


def _times(measure: Callable[..., int], *arguments: object) -> TaskTimes:
    """What a native measurement finds."""
    rt = native.rt()
    its = rt.ffi.new("fl_times *")
    rt.check(measure(*arguments, its))
    return TaskTimes(rt.items(its.times, its.n), rt.items(its.alone, its.n_alone))


def round_trips(
    source: int,
    destination: int,
    size: int,
    trips: int = 64,
    others: Sequence[tuple[int, int]] = (),
) -> list[int]:
    """Times (ns) of copies of `size` bytes from one device's memory to another's and back.

    Within one memory, nothing is copied: what the two tasks take that make the trip. Meanwhile as
    much travels on the `others`' ways, from the first device of each to the second and back.
    """
    starts, ends = zip((source, destination), *others, strict=True)
    measure = native.rt().lib.fl_rt_measure_round_trips
    return _times(measure, len(starts), starts, ends, size, trips).together


def clock_offset(here: int, there: int, trips: int = 64) -> int:
    """What the clock of the rank of device `there` is ahead of that of `here` (ns)."""
    numbers = _times(native.rt().lib.fl_rt_measure_clocks, here, there, trips).together
    return offset_of(list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)))


def offset_of(messages: Sequence[tuple[int, int, int]]) -> int:
    """What another clock is ahead of ours, from messages that went there and back.

    The fastest one tells: what it brings was noted halfway, give or take half of its time. Where
    that half is more than the offset, there is none: ranks of a machine share their clock.

    Parameters
    ----------
    messages
        Of each: when it left, by our clock; what the other clock said there; when it was back.
    """
    left, noted, back = min(messages, key=lambda message: message[2] - message[0])
    offset = noted - (left + back) // 2
    return 0 if abs(offset) <= (back - left) // 2 else offset


def fit_linear(sizes: Sequence[int], times: Sequence[int]) -> Linear:
    """The overhead and rate that leave the smallest sum of squared relative errors.

    Parameters
    ----------
    sizes
        Bytes, at least two different ones.
    times
        Nanoseconds.
    """
    # Unknowns: overhead a (ns), b (ns a byte); of each point (s, t), (a + b s - t) / t.
    weights = [1.0 / max(1, t) ** 2 for t in times]
    total = sum(weights)
    mean_s = sum(w * s for w, s in zip(weights, sizes, strict=True)) / total
    mean_t = sum(w * t for w, t in zip(weights, times, strict=True)) / total
    variance = sum(w * (s - mean_s) ** 2 for w, s in zip(weights, sizes, strict=True))
    covariance = sum(
        w * (s - mean_s) * (t - mean_t) for w, s, t in zip(weights, sizes, times, strict=True)
    )
    slope = covariance / variance
    overhead = mean_t - slope * mean_s
    if overhead < 0 or slope <= 0:  # noise: the line through the origin and the largest
        overhead, slope = 0.0, max(times) / max(sizes)
    return Linear(round(overhead), max(1, round(1e9 / slope)))


def _native_repeats(repeats: Repeats) -> object:
    numbers = list(astuple(repeats))
    return native.rt().ffi.new("fl_repeats *", numbers)
