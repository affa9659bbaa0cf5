"""Ending on a signal: Ctrl-C (SIGINT), or SIGTERM.

Batch systems, containers and spot machines send SIGTERM some seconds before they end a process.
Work that can say where it stands asks inside `deferred`: the first signal is only noted, so the
work ends where it is whole, saves, and raises what `ended` makes. Elsewhere a signal raises the
same at once, once `raise_on_signals` was called. Commands turn it into one sentence and a status.

Imported before all else, so it imports little.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# What stands for both where mpirun lies between: it kills its ranks a second after a SIGINT or
# SIGTERM of its own, but hands this one on.
HANDED_ON = signal.SIGUSR2

# What users read, of whichever signal: a process under legate does not know which one its user
# sent. The exit status says it.
INTERRUPTED = "interrupted"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. Its text is a sentence for the user, or empty.

    Attributes
    ----------
    number
        The signal's.
    status
        Of the command that it ends.
    """

    number: int = signal.SIGINT

    @property
    def status(self) -> int:
        """As a shell reports a program that the signal ended."""
        return 128 + self.number


class Terminated(Interrupted, SystemExit):
    """SIGTERM. A script that does not catch it ends without a traceback, with status 143."""

    number = signal.SIGTERM

    def __init__(self, *sentence: str) -> None:
        super().__init__(*sentence)
        self.code = self.status


def ended(number: int, sentence: str = "") -> Interrupted:
    """What to raise because of a signal."""
    kind = Interrupted if number == signal.SIGINT else Terminated
    return kind(sentence) if sentence else kind()


def again(interrupt: KeyboardInterrupt | None, sentence: str = "") -> Interrupted:
    """What to raise when work that was interrupted has been saved; the sentence says where."""
    number = interrupt.number if isinstance(interrupt, Interrupted) else signal.SIGINT
    return ended(number, f"{INTERRUPTED}; {sentence}" if sentence else "")


class Request:
    """Whether a signal asked for the end.

    Attributes
    ----------
    number
        The first signal's; 0: there was none.
    """

    number = 0


def raise_on_signals() -> None:
    """Have SIGINT and SIGTERM raise `Interrupted` and `Terminated` from now on.

    To be called again once Legion runs: its own handler of SIGINT prints a backtrace of native
    code, and aborts.
    """
    for number in _signals():
        signal.signal(number, _raise)


@contextmanager
def deferred() -> Iterator[Request]:
    """Meanwhile, only note the first signal; the second one raises at once.

    Handlers of the user's own stay as they are. In other threads than the main one, which alone
    gets signals, nothing is ever noted.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        if request.number:
            _raise(number, frame)
        request.number = _meant(number)

    usual = (signal.SIG_DFL, signal.default_int_handler, _raise)
    before = {n: handler for n in _signals() if (handler := signal.getsignal(n)) in usual}
    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, _: FrameType | None) -> None:
    raise ended(_meant(number))


def _meant(number: int) -> int:
    return signal.SIGTERM if number == HANDED_ON else number


def _signals() -> tuple[signal.Signals, ...]:
    """Those that this process answers to.

    On several ranks SIGTERM is how mpirun ends the others after one is lost: the native watchdog
    answers it.
    """
    from flexlegion.process import processes

    return (signal.SIGINT, signal.SIGTERM if processes() == 1 else HANDED_ON)
