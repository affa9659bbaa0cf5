"""Ending on a signal: Ctrl-C (SIGINT), or SIGTERM.

Batch systems, containers and spot machines send SIGTERM some seconds before they end a process.
Three answers follow each other in a command:

1. While modules are imported, `end_at_once`: there is nothing to save, and an exception would be
   printed, or lost, by whatever it meets there.
2. At work, `raise_on_signals`: an exception, which the command turns into one sentence and a
   status. Work that can say where it stands asks inside `deferred`: the first signal is only noted,
   so the work ends where it is whole, saves, and raises what `ended` makes.
3. Once the sentence is said, `end_at_once` again, in silence.

Imported before all else, so it imports little.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from flexlegion.process.together import RANKS, processes

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


def end_at_once(sentence: str = INTERRUPTED) -> None:
    """Have SIGINT and SIGTERM end this process from now on.

    What a command has started is ended by what that hands on without a handler, too, and the
    command says so: of both, a second signal might have each say it.

    Parameters
    ----------
    sentence
        To say then.
    """

    def end(number: int, _: FrameType | None) -> None:
        if sentence:
            with suppress(OSError):  # nobody can be told then
                os.write(2, f"{sentence}\n".encode())
        os._exit(128 + number)

    _handle(end, signal.SIGINT)  # first, for what follows takes some milliseconds
    if processes() == 1 and not (sentence and RANKS in os.environ):
        _handle(end, signal.SIGTERM)


def raise_on_signals() -> None:
    """Have SIGINT and SIGTERM raise `Interrupted` and `Terminated` from now on."""
    _handle(_raise, *_signals())


@contextmanager
def handler_kept() -> Iterator[None]:
    """Meanwhile Legion starts, whose own handler of SIGINT prints native code's stack, and ends.

    What was to happen before happens again afterwards, be it that SIGINT is ignored, as it is by
    what a shell script starts in the background.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if _in_main_thread() and before is not None:  # None: not Python's
            signal.signal(signal.SIGINT, before)


@contextmanager
def deferred() -> Iterator[Request]:
    """Meanwhile, only note the first signal; the second one raises at once.

    Handlers of the user's own stay as they are. In other threads than the main one, which alone
    gets signals, nothing is ever noted.
    """
    request = Request()
    if not _in_main_thread():
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


def _handle(handler: Callable[[int, FrameType | None], None], *numbers: int) -> None:
    if _in_main_thread():  # which alone gets signals
        for number in numbers:
            signal.signal(number, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _raise(number: int, _: FrameType | None) -> None:
    raise ended(_meant(number))


def _meant(number: int) -> int:
    return signal.SIGTERM if number == HANDED_ON else number


def _signals() -> tuple[signal.Signals, ...]:
    """Those that this process answers to.

    On several ranks SIGTERM is how mpirun ends the others after one is lost: the native watchdog
    answers it.
    """
    return (signal.SIGINT, signal.SIGTERM if processes() == 1 else HANDED_ON)
