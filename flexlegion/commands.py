"""What all commands share: how a user's mistake ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from flexlegion.ending import Interrupted
from flexlegion.errors import UserError
from flexlegion.process import rank

EXIT_BROKEN_PIPE = 141  # as the shell reports a program that SIGPIPE ended
_FIRST_RANKS_TURN = 2  # seconds


def run_command(
    main: Callable[[Sequence[str] | None], None], argv: Sequence[str] | None = None
) -> int:
    """Run a command; a `UserError` becomes one sentence on standard error and its status.

    Its notes, such as a table, follow.
    """
    try:
        main(argv)
        sys.stdout.flush()
    except UserError as e:
        text = str(e).replace("\n", "\\n")  # of a name in a file, say
        if rank() > 0:
            # What is wrong on all ranks, the first says, and ends them all.
            time.sleep(_FIRST_RANKS_TURN)
            text = f"on rank {rank()}: {text}"
        print(
            "\n".join([f"error: {text}", *getattr(e, "__notes__", [])]), file=sys.stderr, flush=True
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
    return 0
