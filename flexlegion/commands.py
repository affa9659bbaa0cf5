"""What all commands share: how a user's mistake ends."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence

from flexlegion.ending import Interrupted
from flexlegion.errors import NativeError, UserError
from flexlegion.process import rank
from flexlegion.quoting import printable, printable_lines

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
    try:
        main(argv)
        sys.stdout.flush()
    except UserError as e:
        text = printable(str(e))
        if rank() > 0:
            # What is wrong on all ranks, the first says, and ends them all.
            time.sleep(_FIRST_RANKS_TURN)
            text = f"on rank {rank()}: {text}"
        print(
            "\n".join([f"error: {text}", *map(printable_lines, getattr(e, "__notes__", []))]),
            file=sys.stderr,
            flush=True,
        )
        return e.status
    except BrokenPipeError:
        # Whoever reads the output has seen enough, e.g. head. Python would flush once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Interrupted as e:
        if str(e) and rank() == 0:
            print(e, file=sys.stderr, flush=True)
        return e.status
    except KeyboardInterrupt:
        return Interrupted().status
    except Exception as e:
        if os.environ.get(TRACEBACK):
            raise
        status, text = _unforeseen(e)
        print(f"error: {printable(text)}", file=sys.stderr, flush=True)
        return status
    return 0


def _unforeseen(error: Exception) -> tuple[int, str]:
    """Status and sentence of an exception that nobody made a `UserError` of."""
    if isinstance(error, MemoryError):
        return (
            UserError.status,
            "the memory does not suffice; choose a smaller model or batch",
        )
    if isinstance(error, NativeError):
        return UserError.status, str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return EXIT_FAULT, (
        f"a fault of flexlegion itself: {type(error).__name__}: {error} "
        f"({os.path.basename(frame.filename)}, line {frame.lineno}); please report it with the "
        f"command, and what it prints once more with {TRACEBACK}=1 before it"
    )
