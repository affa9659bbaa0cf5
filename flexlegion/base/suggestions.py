"""What somebody may have meant who misspelt a name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import described, printable


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """A question to put behind a name that does not exist; empty: nothing is like it.

    Parameters
    ----------
    word
        What was given.
    names
        What there is.

    Examples
    --------
    >>> did_you_mean("lenett", ["lenet", "alexnet"])
    " (did you mean 'lenet'?)"
    """
    known = {name.lower(): name for name in names}
    close = get_close_matches(word[:100].lower(), known, n=1)
    return f" (did you mean '{known[close[0]]}'?)" if close else ""


def unknown(what: str, name: object, names: Iterable[str]) -> UserError:
    """The error that there is no loss, strategy, ... of that name, and which ones there are."""
    known = list(names)
    word = name if isinstance(name, str) else described(name)
    return UserError(
        f"unknown {what} '{printable(word[:40])}'{did_you_mean(word, known)}; choose one of "
        f"{', '.join(known)}"
    )
