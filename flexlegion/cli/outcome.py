"""What all commands share: how they end, whatever ends them."""

from __future__ import annotations

import errno
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from flexlegion.base.errors import DivergenceError, NativeError, UserError
from flexlegion.base.phase import end_phase
from flexlegion.base.quoting import printable, printable_lines
from flexlegion.base.users_code import first_line, users_frame
from flexlegion.process.ending import INTERRUPTED, Interrupted, end_at_once
from flexlegion.process.together import rank

EXIT_FAULT = 70  # by custom, EX_SOFTWARE of sysexits.h
TRACEBACK = "FLEXLEGION_TRACEBACK"  # to see where an unforeseen exception comes from
EXIT_BROKEN_PIPE = 141  # as the shell reports a program that SIGPIPE ended
_FIRST_RANKS_TURN = 2  # seconds


def run_command(
    main: Callable[[Sequence[str] | None], None], argv: Sequence[str] | None = None
) -> int:
    """Run a command; a `UserError` becomes one sentence on standard error and its status.

    Its notes, such as a table, follow. Other exceptions are faults of flexlegion's own, and become
    a sentence that asks to report them.
    """
    _prepare_streams()
    with warnings.catch_warnings():
        warnings.showwarning = _shown(warnings.showwarning)
        return _run(main, argv)


def _run(main: Callable[[Sequence[str] | None], None], argv: Sequence[str] | None) -> int:
    try:
        main(argv)
        end_phase()
        sys.stdout.flush()
    except UserError as e:
        text = printable(str(e))
        if rank() > 0 and isinstance(e, DivergenceError):
            return e.status  # the loss is that of all ranks, and the first one says it
        if rank() > 0:
            # What is wrong on all ranks, the first says, and ends them all.
            time.sleep(_FIRST_RANKS_TURN)
            text = f"on rank {rank()}: {text}"
        _say("\n".join([f"error: {text}", *map(printable_lines, getattr(e, "__notes__", []))]))
        return e.status
    except KeyboardInterrupt as e:
        end_at_once("")  # a second signal has nothing to add
        if rank() == 0:
            _say(str(e) or INTERRUPTED)
        return _flushed(e.status if isinstance(e, Interrupted) else Interrupted().status)
    except SystemExit as e:  # after --help, and of what starts ranks
        return _flushed(e.code if isinstance(e.code, int) else 1 if e.code else 0)
    except BrokenPipeError:
        # Whoever reads the output has seen enough, e.g. head.
        _drop_output()
        return EXIT_BROKEN_PIPE
    except Exception as e:
        if _is_of_output(e):
            return _unwritten(e)
        if os.environ.get(TRACEBACK):
            raise
        status, text = _unforeseen(e)
        _say(f"error: {printable(text)}")
        return status
    return 0


def _shown(others: Callable[..., None]) -> Callable[..., None]:
    """What shows warnings: this package's as sentences, once for all ranks."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if category is not UserWarning:
            others(message, category, *where, **more)
        elif rank() == 0:
            _say(f"warning: {printable(str(message))}")

    return show


def _unforeseen(error: Exception) -> tuple[int, str]:
    """Status and sentence of an exception that nobody made a `UserError` of."""
    if isinstance(error, MemoryError):
        return (
            UserError.status,
            "the memory does not suffice; choose a smaller model or batch",
        )
    if isinstance(error, NativeError):
        return UserError.status, str(error)
    theirs = users_frame(error, last=True)
    if theirs is not None:
        return UserError.status, (
            f"{theirs.name} in {os.path.basename(theirs.filename)} raises "
            f"{type(error).__name__}: {first_line(error)} (line {theirs.lineno}); this is code of "
            f"your own, and all of the traceback is shown with {TRACEBACK}=1 before the command"
        )
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return EXIT_FAULT, (
        f"a fault of flexlegion itself: {type(error).__name__}: {error} "
        f"({os.path.basename(frame.filename)}, line {frame.lineno}); please report it with the "
        f"command, and what it prints once more with {TRACEBACK}=1 before it"
    )


def _prepare_streams() -> None:
    """Have standard streams that can be written, whatever started this process.

    A closed one leads to nowhere: its number would go to the next file that is opened, into which
    everything that is printed would go. Characters that a locale lacks are written as escapes.
    """
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    reconfigure = getattr(sys.stdout, "reconfigure", None)  # tests put other streams there
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _flushed(status: int) -> int:
    """The status, unless what was printed cannot be written."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return EXIT_BROKEN_PIPE
    except OSError as e:
        return _unwritten(e)
    return status


def _is_of_output(error: Exception) -> bool:
    """Whether writing to standard output failed: errors of files name theirs."""
    return isinstance(error, OSError) and error.filename is None and error.errno == errno.ENOSPC


def _unwritten(error: Exception) -> int:
    """End as standard output cannot be written, on a full disk for example."""
    _drop_output()
    reason = getattr(error, "strerror", None) or error
    _say(f"error: standard output cannot be written ({reason})")
    return UserError.status


def _drop_output() -> None:
    """Have what is left of the output go nowhere: Python flushes once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _say(text: str) -> None:
    end_phase()
    with suppress(OSError):  # nobody can be told then
        print(text, file=sys.stderr, flush=True)
