"""How long strategies take beside a reference, which trains in the same rounds.

A machine's speed changes from one minute to the next, for all that runs then. So times of different
minutes cannot be compared, and an average of many hides that. What is kept of a round is how many
times as long as the reference each strategy took *in it*; the median of these ratios, with the
interval in which it lies, is what a strategy takes. Rounds go on for those whose interval is still
wide.

How the reference itself fared from the first round to the last tells whether the machine was at
rest: if not, no figure of that hour is worth much, however narrow its interval.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.profiling.intervals import Estimate, estimate

# A machine is restless if it became faster or slower by more than this share from the first third
# of the rounds to the last, if the middle half of the reference's times spreads over more than
# this share, or if other programs took more than this share of its cores.
MOST_DRIFT = 0.10
MOST_SPREAD = 0.15
MOST_OTHERS = 0.10


@dataclass(frozen=True)
class Limits:
    """When a strategy's time is known well enough.

    Parameters
    ----------
    rounds, max_rounds
        At least and at most so many; below six, there are no intervals.
    width
        Once an interval's half is at most this share of the time, that strategy takes part no more.
    confidence
        With which an interval holds.
    seconds
        Once these are over, no round begins beyond `rounds`.

    Raises
    ------
    UserError
        If the bounds contradict each other or are out of range.
    """

    rounds: int = 6
    max_rounds: int = 24
    width: float = 0.02
    confidence: float = 0.95
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= self.max_rounds:
            raise UserError(
                f"there are to be at least {self.rounds} rounds, and at most {self.max_rounds}"
            )
        if not 0 < self.confidence < 1:
            raise UserError(f"a confidence is between 0 and 1, but this is {self.confidence}")


class Estimation:
    """Rounds of some strategies beside a reference, until all are known well enough.

    Parameters
    ----------
    reference
        The name of what takes part in every round.
    others
        The others' names.
    limits
        When it ends.

    Examples
    --------
    >>> rounds = Estimation("data", ["single"], Limits())
    >>> while not rounds.over(seconds=0):
    ...     rounds.add({"data": 1.0, "single": 1.5})
    >>> rounds.estimate("single").value
    1.5
    """

    def __init__(self, reference: str, others: Sequence[str], limits: Limits) -> None:
        self.reference = reference
        self.limits = limits
        self.rounds = 0
        self.ratios: dict[str, list[float]] = {name: [] for name in others}
        self._known: set[str] = set()

    @property
    def taking_part(self) -> list[str]:
        """Who trains in the next round: the reference, then those whose intervals are wide."""
        return [self.reference, *(name for name in self.ratios if name not in self._known)]

    def add(self, seconds: Mapping[str, float]) -> None:
        """Note a round: what an iteration took each of `taking_part`."""
        _, *others = self.taking_part
        self.rounds += 1
        for name in others:
            self.ratios[name].append(seconds[name] / seconds[self.reference])
            if self.rounds >= self.limits.rounds and self.estimate(name).width <= self.limits.width:
                self._known.add(name)

    def over(self, seconds: float) -> bool:
        """Whether no round is to follow, after so many seconds."""
        if self.rounds < self.limits.rounds:
            return False
        late = self.rounds >= self.limits.max_rounds or seconds >= self.limits.seconds
        return late or len(self.taking_part) == 1

    def estimate(self, name: str) -> Estimate:
        """How many times as long as the reference it takes."""
        return estimate(self.ratios[name], self.limits.confidence)


@dataclass(frozen=True)
class Rest:
    """Whether a machine was at rest, by how the reference fared in all rounds, in their order.

    Parameters
    ----------
    drift
        How many times as long it took in the last third of the rounds as in the first.
    spread
        The middle half of its times, as a share of the median.
    others
        The share of the machine's cores that other programs had, and that its host withheld; None:
        not known.
    """

    drift: float
    spread: float
    others: float | None = None

    @property
    def restless(self) -> bool:
        """Whether figures of that time mean little."""
        drift = max(self.drift, 1 / self.drift) - 1
        return drift > MOST_DRIFT or self.spread > MOST_SPREAD or (self.others or 0.0) > MOST_OTHERS

    @property
    def verdict(self) -> str:
        """In words."""
        others = "" if self.others is None else f", and other programs had {self.others:.0%} of it"
        told = (
            f"the reference took {self.drift:.2f} times as long at the end as at the beginning, "
            f"the middle half of its times spreads over {self.spread:.0%}{others}"
        )
        return f"{'this machine was too restless' if self.restless else 'at rest'}: {told}"

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "restless": self.restless,
            "drift": self.drift,
            "spread": self.spread,
            "others": self.others,
            "verdict": self.verdict,
        }


def rest_of(seconds: Sequence[float], others: float | None = None) -> Rest:
    """What the reference's times tell.

    Parameters
    ----------
    seconds
        Of all rounds, in their order.
    others
        See `Rest`.
    """
    third = max(1, len(seconds) // 3)
    drift = statistics.median(seconds[-third:]) / statistics.median(seconds[:third])
    if len(seconds) < 2:
        return Rest(drift, 0.0, others)
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Rest(drift, (high - low) / middle, others)
