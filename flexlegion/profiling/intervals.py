"""Where the median lies of what noisy measurements are drawn from: intervals that always hold.

Were the median below some value, each measurement would be above it with a probability of at most
one half; so measurements are flips of a coin that is fair at best. Whoever bets on such flips at
fair odds reaches 1 / p times the money that they began with with a probability of at most p,
whenever they stop (Ville's inequality). `evidence` is what a gambler has after so many flips won
and lost who bets half of the money on a coin that always wins, and the other half on one of which
nothing is known but that it wins more than it loses. Nothing is assumed of the noise but that its
median is the same each time: a pause of the machine does not decide, however long it is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Estimate:
    """A median, and where it lies.

    Parameters
    ----------
    value
        Of what was measured.
    low, high
        The median of what it is drawn from lies between them; 0 and infinity after too few rounds.
    """

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Half of the interval, as a share of the value."""
        return max(self.high - self.value, self.value - self.low) / self.value

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return self.low > 0 and self.high < math.inf

    def times(self, factor: float) -> Estimate:
        """The same of something that is so many times as large."""
        return Estimate(factor * self.value, factor * self.low, factor * self.high)


def estimate(values: Sequence[float], confidence: float) -> Estimate:
    """The median of what was measured, with its interval."""
    low, high = interval(values, (1 - confidence) / 2)
    return Estimate(statistics.median(values), low, high)


def evidence(won: int, lost: int) -> float:
    """How many times its stake a bet has become that a coin wins more often than it loses."""
    flips = won + lost
    always = 2.0**flips if lost == 0 else 0.0
    # The mean over all p from 1/2 to 1 of (2 p)^won (2 (1 - p))^lost, an incomplete beta function.
    tail = sum(math.comb(flips + 1, k) for k in range(lost + 1, flips + 2))
    unknown = tail / ((flips + 1) * math.comb(flips, won))
    return (always + unknown) / 2


@cache
def wins_needed(rounds: int, error: float) -> int | None:
    """The fewest wins in so many rounds that convince; None: not even all of them would.

    Parameters
    ----------
    rounds
        How many there were.
    error
        The probability with which a coin that does not win more often may convince in any round.
    """
    convincing = (won for won in range(rounds + 1) if evidence(won, rounds - won) >= 1 / error)
    return next(convincing, None)


def interval(values: Sequence[float], error: float) -> tuple[float, float]:
    """Where the median of what the values are drawn from lies.

    Parameters
    ----------
    values
        So far; more may follow, and the intervals of all these moments hold together.
    error
        The probability with which each end may be wrong at any of these moments.

    Returns
    -------
    tuple
        The lowest and the highest median that the values do not speak against; 0 and infinity where
        they are too few to tell.
    """
    needed = wins_needed(len(values), error)
    if needed is None:
        return 0.0, math.inf
    ordered = sorted(values)
    return ordered[-needed], ordered[needed - 1]
