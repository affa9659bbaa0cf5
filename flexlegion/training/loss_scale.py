"""Dynamic loss scaling: gradients that float16 can hold.

float16 loses what is smaller than 6e-8, which many gradients are. So losses are multiplied with a
scale, and with them all gradients, until a weight's update divides by it. The scale is as large as
it may be: if gradients overflow, the iteration changes nothing, and the scale is halved; after a
long time without that, it is doubled. (Micikevicius et al., "Mixed Precision Training", ICLR 2018,
section 3.2.)

The scale is always a power of two, so nothing is rounded by it.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST = 2.0**16
LARGEST = 2.0**24
LEAST = 1.0
ITERATIONS = 2000  # without an overflow, until it is doubled


@dataclass
class LossScale:
    """The scale of the iterations that are issued next.

    What became of an iteration is known some iterations later, so several may overflow with one
    scale; it is halved once for them.

    Parameters
    ----------
    value
        The scale.
    good
        Iterations with it that did not overflow.
    """

    value: float = FIRST
    good: int = 0

    def finished(self, scale: float, overflowed: bool) -> None:
        """An iteration that was issued with that scale has ended."""
        if scale != self.value:
            return
        if overflowed:
            self.value = max(self.value / 2, LEAST)
            self.good = 0
            return
        self.good += 1
        if self.good == ITERATIONS:
            self.value = min(self.value * 2, LARGEST)
            self.good = 0

    @property
    def exhausted(self) -> bool:
        """Whether nothing is scaled any more: gradients that overflow do so by themselves."""
        return self.value == LEAST
