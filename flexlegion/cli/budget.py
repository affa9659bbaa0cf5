"""Options of commands that search: budgets, seeds, chains."""

from __future__ import annotations

import argparse

from flexlegion.searches.budget import DEFAULT


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
        help="how many proposals each chain anneals with at most; a descent to a local optimum "
        "follows, which only --budget ends; without that, the same seed gives the same result on "
        "every machine",
    )
    parser.add_argument("--seed", type=int, default=0, help="decides all that is random; default 0")
    parser.add_argument(
        "--chains",
        type=int,
        metavar="N",
        help="chains side by side; default: one a core, or without --budget two",
    )
