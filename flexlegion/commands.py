"""What all commands share: how a user's mistake ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from flexlegion.errors import UserError

EXIT_USER_ERROR = 2


def run_command(
    main: Callable[[Sequence[str] | None], None], argv: Sequence[str] | None = None
) -> int:
    """Run a command; a `UserError` becomes one sentence on standard error and status 2."""
    try:
        main(argv)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr, flush=True)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        return 130
    return 0
