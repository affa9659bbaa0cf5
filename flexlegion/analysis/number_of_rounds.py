"""In how many micro-batches a batch is searched: those numbers whose starts are the fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from flexlegion.analysis.setting import Setting
from flexlegion.base.errors import UserError
from flexlegion.console.text import duration
from flexlegion.networks.network import Network
from flexlegion.objective.training import check_micro_batches
from flexlegion.sim.simulator import judge, price
from flexlegion.strategy.strategy import ResolvedStrategy

SEARCHED = 2  # numbers
# When the starts have taken such a share of the budget, and some fit, no larger number is tried.
STARTS_SHARE = 0.5


class Case(NamedTuple):
    """What is searched: a network in its setting, from where, and what is to be said of that."""

    setting: Setting
    starts: dict[str, ResolvedStrategy]
    notes: tuple[str, ...]


def in_rounds(
    network: Network,
    most: int,
    case_of: Callable[[Network], Case],
    used: Callable[[], float] = lambda: 0.0,
) -> list[Case]:
    """The numbers of micro-batches whose starts are the fastest, as cases; the fastest first.

    If no start fits into memory with any number, the largest number.

    Parameters
    ----------
    network
        A whole batch.
    most
        So many at most; numbers are powers of two.
    case_of
        What is searched of a network.
    used
        The share of the budget that is used up; 0: it is not one of time.

    Raises
    ------
    UserError
        If there cannot be so many, their number was given besides, or there is no strategy to
        start from.
    """
    check_micro_batches(most)
    if network.training.micro_batches > 1:
        raise UserError(
            f"the number of micro-batches is given, {network.training.micro_batches:,}, and to be "
            "chosen (most_micro_batches, --most-micro-batches); leave one of the two out"
        )
    fitting: list[tuple[int, Case]] = []
    told = []
    last, number = case_of(network), 1
    while True:
        fastest = _fastest(last)
        if fastest is not None:
            fitting.append((fastest, last))
        told.append(f"{number:,} ({'does not fit' if fastest is None else duration(fastest)})")
        number *= 2
        if number > most:
            break
        if fitting and used() > STARTS_SHARE:
            told.append(f"{number:,} and more (not tried, as half of the budget is used up)")
            break
        training = replace(network.training, micro_batches=number)
        try:
            last = case_of(Network.of(network.model, training))
        except UserError as e:
            told.append(f"{number:,} (not possible: {e})")
            break
    fitting.sort(key=lambda its: its[0])
    chosen = [case for _, case in fitting[:SEARCHED]] or [last]
    note = f"micro-batches, and the fastest start of each: {', '.join(told)}"
    return [case._replace(notes=(note, *case.notes)) for case in chosen]


def _fastest(case: Case) -> int | None:
    """What the fastest start takes, in ns; None: none fits.

    Sketches say which one it is (`DETAILS`): of the slow ones, some have a hundred times the tasks.
    """
    problem = case.setting.problem
    sketched = []
    for start in case.starts.values():
        its = judge(problem, start, 0, "bundles")
        if its.time_ns is not None:
            sketched.append((its.time_ns, its.all_tasks, start))
    if not sketched:
        return None
    least, tasks, start = min(sketched, key=lambda its: its[0])
    return price(problem, start, tasks).time_ns or least
