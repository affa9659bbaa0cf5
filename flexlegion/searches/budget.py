"""Budgets of searches as users write them: ``30s``, numbers of proposals, seeds, chains."""

from __future__ import annotations

import re

from flexlegion.base.errors import UserError
from flexlegion.searches.options import Budget

UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
MAX_SECONDS = 10**7
MAX_CHAINS = 256
DEFAULT = "60s"

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([a-z]*)")


def budget_of(budget: str | float | Budget | None, proposals: int | None = None) -> Budget:
    """When a search stops.

    Parameters
    ----------
    budget
        A time as `seconds_of` reads it, or seconds; None: `DEFAULT`, or without a limit where
        proposals are given.
    proposals
        How many each chain makes at most.

    Raises
    ------
    UserError
        If one of them is out of bounds.
    """
    if isinstance(budget, Budget):
        return budget
    if proposals is not None and not 1 <= proposals <= 10**15:
        raise UserError(f"the number of proposals has to be 1 to 10^15, but is {proposals}")
    if budget is None and proposals is not None:
        return Budget(None, proposals)
    return Budget(seconds_of(DEFAULT if budget is None else budget), proposals)


def check_search(seed: int, chains: int | None) -> None:
    """Raise `UserError` unless a search can have this seed and so many chains."""
    if not 0 <= seed < 2**62:
        raise UserError(f"the seed has to be at least 0 and below 2^62, but is {seed}")
    if chains is not None and not 1 <= chains <= MAX_CHAINS:
        raise UserError(f"the number of chains has to be 1 to {MAX_CHAINS}, but is {chains}")


def seconds_of(time: str | float, what: str = "the budget") -> float:
    """Seconds of ``30s``, ``2m``, ``1.5h``, ``500ms``; of a number alone, so many.

    Messages say of what.

    Raises
    ------
    UserError
        If it is no such duration, or out of bounds.
    """
    text = str(time)
    match = _DURATION.fullmatch(text.strip())
    if match is None or (match[2] or "s") not in UNITS:
        raise UserError(f"{what} has to be a time such as 30s, 2m or 1h, but is '{text[:40]}'")
    seconds = float(match[1]) * UNITS[match[2] or "s"]
    if not 0 < seconds <= MAX_SECONDS:
        raise UserError(
            f"{what} has to be more than nothing and at most {MAX_SECONDS:,} seconds, but is "
            f"'{text[:40]}'"
        )
    return seconds
