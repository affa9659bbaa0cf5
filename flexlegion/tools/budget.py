"""Options of commands that search: budgets, seeds, chains."""

from __future__ import annotations

import argparse
import re

from flexlegion.errors import UserError
from flexlegion.searches.mcmc import Budget

UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
MAX_SECONDS = 10**7
MAX_CHAINS = 256
DEFAULT = "60s"

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([a-z]*)")


def add_budget_options(parser: argparse.ArgumentParser, more: str = "") -> None:
    """``--budget``, ``--proposals``, ``--seed``, ``--chains``; `more` is said of the budget."""
    parser.add_argument(
        "--budget",
        metavar="TIME",
        help=f"how long to search: 30s, 2m, 1h; default: {DEFAULT}, or with --proposals no "
        f"limit{more}",
    )
    parser.add_argument(
        "--proposals",
        type=int,
        metavar="N",
        help="how many proposals each chain makes at most; without --budget the same seed and "
        "--chains give the same result on every machine",
    )
    parser.add_argument("--seed", type=int, default=0, help="decides all that is random; default 0")
    parser.add_argument(
        "--chains", type=int, metavar="N", help="chains from each start; default: one a core"
    )


def budget_of(args: argparse.Namespace) -> Budget:
    """The budget that the options ask for; checks the seed and the number of chains, too.

    Raises
    ------
    UserError
        If one of them is out of bounds.
    """
    if not 0 <= args.seed < 2**62:
        raise UserError(f"--seed has to be at least 0 and below 2^62, but is {args.seed}")
    if args.chains is not None and not 1 <= args.chains <= MAX_CHAINS:
        raise UserError(f"--chains has to be 1 to {MAX_CHAINS}, but is {args.chains}")
    if args.proposals is not None and not 1 <= args.proposals <= 10**15:
        raise UserError(f"--proposals has to be 1 to 10^15, but is {args.proposals}")
    if args.budget is None and args.proposals is not None:
        return Budget(None, args.proposals)
    return Budget(seconds_of(DEFAULT if args.budget is None else args.budget), args.proposals)


def seconds_of(text: str, option: str = "--budget") -> float:
    """Seconds of ``30s``, ``2m``, ``1.5h``, ``500ms``; of a number alone, so many.

    Messages name the option.

    Raises
    ------
    UserError
        If it is no such duration, or out of bounds.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or (match[2] or "s") not in UNITS:
        raise UserError(f"{option} has to be a time such as 30s, 2m or 1h, but is '{text[:40]}'")
    seconds = float(match[1]) * UNITS[match[2] or "s"]
    if not 0 < seconds <= MAX_SECONDS:
        raise UserError(
            f"{option} has to be more than nothing and at most {MAX_SECONDS:,} seconds, but is "
            f"'{text[:40]}'"
        )
    return seconds
