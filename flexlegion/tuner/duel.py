"""Is a strategy really faster than the baseline? A test that may look after every round.

A round trains the baseline and each challenger that is still in for a moment, in an order drawn at
random. What counts is a challenger's speed-up in each round, the baseline's time over its own: if
the machine slows down meanwhile, it slows both.

The question is whether the median speed-up is above some value; its interval (`cost.intervals`)
holds after every round, so that it may be looked at after each.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from flexlegion.base.errors import UserError
from flexlegion.console.text import count
from flexlegion.profiling.intervals import interval

Verdict = Literal["faster", "out", "undecided"]


@dataclass(frozen=True)
class Rules:
    """When a duel ends, and what it takes to win it.

    Parameters
    ----------
    gain
        A challenger has to be faster than the baseline by more than this share.
    confidence
        With this probability, all intervals hold in all rounds; so a challenger that is not faster
        by `gain` is chosen with a probability of at most 1 - `confidence`.
    rounds
        At least so many, though all may be decided before.
    max_rounds
        At most so many.
    seconds
        Once these are over, no round begins beyond `rounds`.

    Raises
    ------
    UserError
        If the bounds contradict each other or are out of range.
    """

    gain: float = 0.01
    confidence: float = 0.95
    rounds: int = 7
    max_rounds: int = 60
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UserError(f"there has to be at least 1 round, not {self.rounds}")
        if self.max_rounds < self.rounds:
            raise UserError(
                f"there are to be at least {self.rounds} rounds, and at most {self.max_rounds}"
            )
        if not 0 < self.confidence < 1:
            raise UserError(f"a confidence is between 0 and 1, but this is {self.confidence}")
        if not 0 <= self.gain < math.inf:
            raise UserError(f"a gain is a share of at least 0, but this is {self.gain}")


@dataclass
class Standing:
    """How a challenger does against the baseline.

    Parameters
    ----------
    name
        For people.
    speedups
        The baseline's time over the challenger's, in each round that it took part in.
    low, high
        Between these lies the median speed-up.
    verdict
        Whether it is faster by the gain asked for; "out": it is not, or another is faster still.
    """

    name: str
    speedups: list[float] = field(default_factory=list)
    low: float = 0.0
    high: float = math.inf
    verdict: Verdict = "undecided"

    @property
    def median(self) -> float:
        """Of the speed-ups."""
        return statistics.median(self.speedups)

    @property
    def won(self) -> int:
        """How many rounds it was faster in."""
        return sum(speedup > 1 for speedup in self.speedups)

    def facts(self) -> dict[str, Any]:
        """For JSON; an interval of None: there are too few rounds to tell."""
        known = self.low > 0 and self.high < math.inf
        return {
            "name": self.name,
            "rounds": len(self.speedups),
            "won": self.won,
            "speedups": self.speedups,
            "median_speedup": self.median if self.speedups else None,
            "interval": [self.low, self.high] if known else None,
            "verdict": self.verdict,
        }

    def told(self, confidence: float) -> str:
        """In words: how many rounds it won, and by how much."""
        interval = f"{self.low:.2f} to {self.high:.2f} with {confidence:.0%} confidence"
        if self.low == 0 or self.high == math.inf:
            interval = "too few rounds for an interval"
        return (
            f"won {self.won} of {count(len(self.speedups), 'round')}, and its median speed-up is "
            f"{self.median:.2f} ({interval})"
        )


class Duel:
    """Challengers against a baseline, round by round.

    Parameters
    ----------
    baseline
        The name of what is kept unless another is clearly faster.
    challengers
        The others' names.
    rules
        When it ends, and what it takes to win.

    Examples
    --------
    >>> duel = Duel("data parallelism", ["found"], Rules())
    >>> while not duel.over(seconds=0):
    ...     duel.add({"data parallelism": 1.2, "found": 1.0})
    >>> duel.chosen
    'found'
    """

    def __init__(self, baseline: str, challengers: Sequence[str], rules: Rules) -> None:
        self.baseline = baseline
        self.rules = rules
        self.rounds = 0
        self.standings = {name: Standing(name) for name in challengers}
        # What may go wrong is shared by all challengers, and by both ends of each interval.
        self._error = (1 - rules.confidence) / max(1, 2 * len(challengers))

    @property
    def taking_part(self) -> list[str]:
        """Who trains in the next round: the baseline, then the challengers that are still in."""
        return [self.baseline, *(standing.name for standing in self._still_in())]

    def add(self, seconds: Mapping[str, float]) -> None:
        """Note a round.

        Parameters
        ----------
        seconds
            What an iteration took each of `taking_part`.
        """
        self.rounds += 1
        challengers = self._still_in()
        for standing in challengers:
            standing.speedups.append(seconds[self.baseline] / seconds[standing.name])
            standing.low, standing.high = interval(standing.speedups, self._error)
        needed = 1 + self.rules.gain
        beaten = max([needed, *(standing.low for standing in challengers)])
        for standing in challengers:
            if standing.high < beaten:
                standing.verdict = "out"
            else:
                standing.verdict = "faster" if standing.low > needed else "undecided"

    def over(self, seconds: float) -> bool:
        """Whether no round is to follow, after so many seconds.

        That is when the best is clearly faster, or all are clearly not; or at the limits.
        """
        challengers = self._still_in()
        if not challengers:
            return self.rounds > 0  # one, to know the baseline's time
        if self.rounds < self.rules.rounds:
            return False
        if max(challengers, key=lambda standing: standing.median).verdict == "faster":
            return True
        return self.rounds >= self.rules.max_rounds or seconds >= self.rules.seconds

    @property
    def chosen(self) -> str:
        """The best of those that are clearly faster than the baseline, else the baseline."""
        faster = [s for s in self.standings.values() if s.verdict == "faster"]
        return max(faster, key=lambda standing: standing.median).name if faster else self.baseline

    @property
    def reason(self) -> str:
        """Why `chosen` was chosen, in a sentence."""
        chosen, rules = self.chosen, self.rules
        if chosen != self.baseline:
            told = self.standings[chosen].told(rules.confidence)
            return f"{chosen} is chosen over {self.baseline}: it {told}"
        if not self.standings:
            return f"{self.baseline} stays: there is nothing to compare it with"
        still_in = self._still_in()
        best = max(still_in or self.standings.values(), key=lambda standing: standing.median)
        told = f"the best, {best.name}, {best.told(rules.confidence)}"
        if not still_in:
            return f"{self.baseline} stays: no other is more than {rules.gain:.0%} faster; {told}"
        limit = "the most allowed"
        if self.rounds < rules.max_rounds:
            limit = f"as many as {rules.seconds:g} s allow"
        return (
            f"{self.baseline} stays: after {count(self.rounds, 'round')}, {limit}, no other is "
            f"clearly more than {rules.gain:.0%} faster; {told}"
        )

    def _still_in(self) -> list[Standing]:
        return [s for s in self.standings.values() if s.verdict != "out"]
