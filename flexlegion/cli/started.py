"""The legate that a command has started: it hears of signals, and nothing of it is left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from flexlegion.base.phase import shows_bars
from flexlegion.process.ending import HANDED_ON, ended

_PR_SET_CHILD_SUBREAPER = 36


def stay_with(command: Sequence[str], environment: Mapping[str, str], ranks: int) -> NoReturn:
    """Run legate, and end as it ends.

    The first signal asks it to end, which it does after the running iterations; a second one kills
    it. Its status alone would not do: it is 1 or 254, whatever signal ended it.

    Parameters
    ----------
    command, environment
        Of legate.
    ranks
        How many processes it starts.
    """
    caught: list[int] = []

    def hand_on(number: int, _: FrameType | None) -> None:
        caught.append(number)
        if len(caught) == 1:
            _ask(started.pid, ranks)
        elif len(caught) == 2:
            # What has said its sentence by now, or is writing, is about to end by itself.
            signal.signal(signal.SIGALRM, lambda *_: _kill_all())
            signal.setitimer(signal.ITIMER_REAL, _GRACE)
        else:
            _kill_all()

    # Whose parent ends before it is then this process's, which can find it.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Handlers come first, so that a signal cannot fall between. In a session of its own, or Ctrl-C
    # would reach legate twice.
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup
        signals.remove(signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    started = subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, signals),
    )
    for number in signals:
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    status = started.wait()
    if caught and status != 0:
        _kill_all()
        if status in _SPOKEN:
            sys.exit(128 + caught[0])
        if len(caught) > 1 and shows_bars(sys.stderr):
            # A bar that was killed has left its line open, and the cursor hidden.
            print("\x1b[?25h", file=sys.stderr)
        raise ended(caught[0])
    if status > 128:  # mpirun would say it, but is told to be quiet
        what = signal.strsignal(status - 128) if status - 128 < signal.NSIG else None
        print(f"error: a rank was ended by signal {status - 128} ({what})", file=sys.stderr)
    sys.exit(status)


_GRACE = 0.5  # seconds from a second signal until all that was started is killed

# A process that ends with one of these has said so.
_SPOKEN = (128 + signal.SIGINT, 128 + signal.SIGTERM)


def _ask(legate: int, ranks: int) -> None:
    """Have the processes that train end.

    They are asked by SIGTERM in place of SIGINT, which a Python that starts answers by a traceback.
    """
    launchers = _children(legate)
    with suppress(ProcessLookupError):
        if ranks > 1 and launchers:
            for launcher in launchers:
                os.kill(launcher, HANDED_ON)
        else:
            os.kill(legate, signal.SIGTERM)


def _kill_all() -> None:
    """Kill all that this process has started, directly or not."""
    found = _children(os.getpid())
    for pid in found:  # grows
        found += _children(pid)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended meanwhile
            found += [int(child) for child in thread.read_text().split()]
    return found
