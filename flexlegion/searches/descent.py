"""Descents to a local optimum that several chains share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from flexlegion.searches.chain import Chain

SLICE_SECONDS = 0.5

T = TypeVar("T")


def descend(
    chains: Sequence[Chain],
    pool: ThreadPoolExecutor,
    deadline: float | None,
    tied: bool = False,
    report: Callable[[], None] | None = None,
) -> bool:
    """Descend from the best strategy of any chain; all of them end with the result.

    Each chain changes its share of the operators; after each slice, all go on from the best
    strategy. With several chains, which local optimum they reach depends on their speed.

    Parameters
    ----------
    chains
        Of one problem.
    pool
        With as many threads.
    deadline
        By `time.monotonic`; None: however long it takes.
    tied
        Operators of one group change together.
    report
        Called after each slice.

    Returns
    -------
    bool
        Whether no change of one operator (or group) improves the strategy.
    """
    while deadline is None or time.monotonic() <= deadline:
        start = best_of(chains).best
        for chain in chains:
            if chain.best != start:
                chain.adopt(start)
        done = wait(
            [
                pool.submit(chain.descend, SLICE_SECONDS, tied, i, len(chains))
                for i, chain in enumerate(chains)
            ]
        )
        if report is not None:
            report()
        if all(done) and all(chain.best == start for chain in chains):
            return True
    return False


def best_of(chains: Sequence[Chain]) -> Chain:
    """The chain with the fastest strategy that fits into memory, if any does."""

    def key(chain: Chain) -> tuple[bool, int]:
        time = chain.state.best_time
        return time < 0, time

    return min(chains, key=key)


def wait(futures: list[Future[T]]) -> list[T]:
    """Their results. An interrupt arrives when all are done: chains must not be left running."""
    try:
        return [future.result() for future in futures]
    except KeyboardInterrupt:
        for future in futures:
            future.exception()
        raise
