"""What else ran while strategies trained: other programs, and what the machine's host withheld."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from flexlegion.machine.running import all_gather, running_machine
from flexlegion.profiling.local import hosts_and_models
from flexlegion.tuner.rounds import Rest, rest_of

_STAT = Path("/proc/stat")
_TICK = 1 / os.sysconf("SC_CLK_TCK")


class Watch:
    """While it lasts, adds up what others took of this machine's cores.

    Every rank has one; those of a machine count each other's processes as their own.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._others = 0.0
        self._begin: tuple[float, float, float] | None = None

    def __enter__(self) -> Watch:
        self._begin = _now()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def paused(self, call: Callable[[int], None]) -> Callable[[int], None]:
        """That call, during which nothing is watched."""

        def between(number: int) -> None:
            self._stop()
            call(number)
            self._begin = _now()

        return between

    def rest(self, seconds: Sequence[float]) -> Rest:
        """Whether the machine was at rest, with what it was `rest_of`; the same on all ranks."""
        share = None
        if _STAT.exists() and self._seconds > 0:
            share = max(0.0, self._others / (os.cpu_count() or 1) / self._seconds)
        told = all_gather(np.float64(-1 if share is None else share).tobytes())
        worst = max(float(np.frombuffer(rank)[0]) for rank in told)
        return rest_of(seconds, None if worst < 0 else worst)

    def _stop(self) -> None:
        if self._begin is None:
            return
        before, self._begin = self._begin, None
        after = _now()
        self._seconds += after[0] - before[0]
        self._others += (after[1] - before[1]) - (after[2] - before[2])


def _now() -> tuple[float, float, float]:
    """Seconds: of the clock, of what this machine's cores computed, of our ranks' part in that."""
    if not _STAT.exists():
        return time.monotonic(), 0.0, 0.0
    numbers = list(map(int, _STAT.read_text().split("\n", 1)[0].split()[1:]))
    user, nice, system, _idle, _iowait, irq, softirq, steal = numbers[:8]
    busy = _TICK * (user + nice + system + irq + softirq + steal)
    mine = time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID)
    hosts, _ = hosts_and_models()
    here = [host == hosts[running_machine().rank] for host in hosts]
    its = [float(np.frombuffer(rank)[0]) for rank in all_gather(np.float64(mine).tobytes())]
    return time.monotonic(), busy, sum(t for t, near in zip(its, here, strict=True) if near)
